// What a checkpoint costs the steps beside it, and how quickly it is written and loaded, beside the bare disk.
#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <torch/nn/functional/loss.h>
#include <torch/utils.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <optional>
#include <random>

#include <trireme/base/descriptor.h>
#include <trireme/base/error.h>
#include <trireme/cluster/agreement.h>
#include <trireme/cluster/world.h>
#include <trireme/models/models.h>
#include <trireme/parallel/parallel.h>
#include <trireme/parallel/saver.h>

#include "../bench.h"

namespace trireme::tools {
namespace {

namespace fs = std::filesystem;

constexpr int kWarm = 4, kQuiet = 6;  // steps: not counted; without a checkpoint, before and after each
constexpr size_t kBlock = size_t{4} << 20;
constexpr Seconds kLimit{120};  // for one checkpoint

double middle_of(std::vector<double> values) {
  const auto middle = values.begin() + static_cast<ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

Descriptor open_file(const std::string& path, int flags) {
  Descriptor file(open(path.c_str(), flags | O_CLOEXEC, 0644));
  if (file.get() < 0) fail<IoError>("cannot open {}: {}", path, errno_text());
  return file;
}

/// Noise, so that no disk is quick because it compresses.
std::vector<uint32_t> noise() {
  std::vector<uint32_t> block(kBlock / sizeof(uint32_t));
  std::mt19937 random(1);
  std::generate(block.begin(), block.end(), random);
  return block;
}

/// Seconds that a file of as many bytes takes, one write after another, fsync included.
double write_bare(const std::string& path, uint64_t bytes) {
  const std::vector<uint32_t> block = noise();
  const auto start = Clock::now();
  const Descriptor file = open_file(path, O_WRONLY | O_CREAT | O_TRUNC);
  for (uint64_t at = 0; at < bytes;) {
    const ssize_t some = write(file.get(), block.data(), std::min<uint64_t>(kBlock, bytes - at));
    if (some <= 0) fail<IoError>("cannot write {}: {}", path, errno_text());
    at += static_cast<uint64_t>(some);
  }
  if (fsync(file.get()) < 0) fail<IoError>("cannot sync {}: {}", path, errno_text());
  return seconds_since(start);
}

std::vector<std::string> files_of(const std::string& folder) {
  std::vector<std::string> files;
  for (const auto& entry : fs::directory_iterator(folder)) files.push_back(entry.path().string());
  std::sort(files.begin(), files.end());
  return files;
}

/// Seconds to read these files once, one after another.
double read_bare(const std::vector<std::string>& files) {
  std::vector<std::byte> block(kBlock);
  const auto start = Clock::now();
  for (const std::string& path : files) {
    const Descriptor file = open_file(path, O_RDONLY);
    posix_fadvise(file.get(), 0, 0, POSIX_FADV_SEQUENTIAL);
    ssize_t some = 0;
    while ((some = read(file.get(), block.data(), block.size())) > 0) continue;
    if (some < 0) fail<IoError>("cannot read {}: {}", path, errno_text());
  }
  return seconds_since(start);
}

/// Pages of the file that are in memory, and all.
std::pair<size_t, size_t> resident_pages(const Descriptor& file) {
  struct stat about {};
  if (fstat(file.get(), &about) < 0 || about.st_size == 0) return {0, 0};
  const auto bytes = static_cast<size_t>(about.st_size), page = static_cast<size_t>(getpagesize());
  void* const memory = mmap(nullptr, bytes, PROT_READ, MAP_SHARED, file.get(), 0);
  if (memory == MAP_FAILED) fail<IoError>("cannot map a file: {}", errno_text());
  std::vector<unsigned char> there((bytes + page - 1) / page, 1);
  mincore(memory, bytes, there.data());
  munmap(memory, bytes);
  return {static_cast<size_t>(std::count_if(there.begin(), there.end(), [](auto bits) { return (bits & 1) != 0; })),
          there.size()};
}

/// Takes the files out of the page cache; the percentage that stayed there all the same.
double drop(const std::vector<std::string>& files) {
  size_t stayed = 0, all = 0;
  for (const std::string& path : files) {
    const Descriptor file = open_file(path, O_RDONLY);
    posix_fadvise(file.get(), 0, 0, POSIX_FADV_DONTNEED);
    const auto [some, pages] = resident_pages(file);
    stayed += some, all += pages;
  }
  return all == 0 ? 100 : 100 * static_cast<double>(stayed) / static_cast<double>(all);
}

/// What one turn found; on rank 0.
struct Found {
  std::vector<double> quiet, beside;  // steps, ms: without a checkpoint, and while one is taken and written
  double save_ms = 0;                 // of the first of those: Saver::save() itself
  double checkpoint_s = 0;            // from save() until it was complete, beside the steps
  double bytes = 0, write_s = 0, disk_write_s = 0, load_s = 0, disk_read_s = 0;
  double stayed = 0;  // percent of the files that the page cache would not drop

  std::string line(int turn) const {
    const double median = middle_of(quiet);
    const auto longest = std::max_element(beside.begin(), beside.end());
    double extra = 0;
    for (double ms : beside) extra += ms - median;
    return fmt::format(
        "{{\"turn\": {}, \"mb\": {:.3f}, \"median_ms\": {:.3f}, \"quiet_longest_ms\": {:.3f}, \"longest_ms\": "
        "{:.3f}, \"longest_step\": {}, \"first_ms\": {:.3f}, \"save_ms\": {:.3f}, \"steps\": {}, \"extra_ms\": {:.3f}, "
        "\"checkpoint_s\": {:.4f}, \"write_s\": {:.4f}, \"disk_write_s\": {:.4f}, \"load_s\": {:.4f}, "
        "\"disk_read_s\": {:.4f}, \"stayed\": {:.2f}}}\n",
        turn, bytes / 1e6, median, *std::max_element(quiet.begin(), quiet.end()), *longest,
        longest - beside.begin() + 1, beside.front(), save_ms, beside.size(), extra, checkpoint_s, write_s,
        disk_write_s, load_s, disk_read_s, stayed);
  }
};

class Turns {
 public:
  Turns(Parallel& train, std::function<torch::Tensor()> loss, const std::string& dir)
      : train_(train),
        group_(train.group().comm()),
        loss_(std::move(loss)),
        dir_(dir),
        saver_(train, {.dir = dir, .keep = {.keep = 1}, .limit = kLimit}) {
    for (int step = 0; step < kWarm; step++) time_step(Clock::now());
  }

  Found turn(int number) {
    Found found;
    some_quiet(found);
    train_beside(found);
    some_quiet(found);
    const bool first = number % 2 == 0;  // ours or the bare disk
    if (!first) bare_write(found);
    write_alone(found);
    if (first) bare_write(found);
    if (!first) bare_read(found);
    load(found);
    if (first) bare_read(found);
    return found;
  }

 private:
  double time_step(Clock::time_point begin) {
    train_.step(loss_);
    steps_++;
    return seconds_since(begin) * 1e3;
  }

  void some_quiet(Found& found) {
    for (int step = 0; step < kQuiet; step++) found.quiet.push_back(time_step(Clock::now()));
  }

  /// All ranks go on as long as rank 0's checkpoint is not complete. To agree on it is no part of the steps' time.
  bool still_busy() {
    const std::string busy = "busy";
    return cluster::on_first(
               group_, [&] { return saver_.busy() ? busy : std::string("done"); }, "a checkpoint") == busy;
  }

  void train_beside(Found& found) {
    group_.barrier("before a checkpoint");
    auto begin = Clock::now();
    saver_.save({.step = steps_});
    found.save_ms = seconds_since(begin) * 1e3;
    for (bool more = true; more; begin = Clock::now()) {
      found.beside.push_back(time_step(begin));
      more = still_busy();
    }
    found.checkpoint_s = saver_.complete().seconds;
  }

  void write_alone(Found& found) {
    time_step(Clock::now());  // another step, another checkpoint
    group_.barrier("before a checkpoint");
    saver_.save({.step = steps_});
    saver_.wait(kLimit);
    const Saved saved = saver_.complete();
    found.write_s = saved.seconds;
    if (group_.rank() == 0) bytes_ = saved.bytes;
    path_ = saved.path;
    found.bytes = static_cast<double>(bytes_);
  }

  void bare_write(Found& found) {
    if (group_.rank() == 0) {
      if (bytes_ == 0) bytes_ = 2 * train_.exchange().flat().layout().bytes();
      const std::string path = dir_ + "/bare";
      found.disk_write_s = write_bare(path, bytes_);
      unlink(path.c_str());
    }
    group_.barrier("after the disk's turn");
  }

  void drop_all(Found& found) {
    if (group_.rank() == 0) found.stayed = std::max(found.stayed, drop(files_of(path_)));
    group_.barrier("files are dropped");
  }

  void load(Found& found) {
    drop_all(found);
    const auto start = Clock::now();
    load_state(train_, path_);
    group_.barrier("loaded");
    found.load_s = seconds_since(start);
  }

  void bare_read(Found& found) {
    drop_all(found);
    if (group_.rank() == 0) found.disk_read_s = read_bare(files_of(path_));
    group_.barrier("after the disk's turn");
  }

  Parallel& train_;
  comm::Communicator& group_;
  std::function<torch::Tensor()> loss_;
  const std::string dir_;
  Saver saver_;
  int64_t steps_ = 0;
  uint64_t bytes_ = 0;  // of a checkpoint; on rank 0
  std::string path_;    // of the last one
};

}  // namespace

int measure_checkpoints(const std::string& out, const CheckpointMeasure& what) {
  World world = join({.timeout_setting = ""});
  torch::manual_seed(0);
  auto net = models::mlp({784, what.width, what.width, 10});
  const torch::Tensor x = torch::randn({what.batch, 784}), y = torch::randint(0, 10, {what.batch}, torch::kInt64);
  Parallel train(world, *net, space::momentum({.lr = 1e-3}));
  Turns all(
      train, [&] { return torch::nn::functional::cross_entropy(net->forward(x), y); }, what.dir);
  std::ofstream file;
  if (world.first()) file.open(out, std::ios::app);
  for (int turn = 0; turn < what.turns; turn++) {
    const Found found = all.turn(turn);
    if (world.first()) file << found.line(turn) << std::flush;
  }
  return 0;
}

}  // namespace trireme::tools
