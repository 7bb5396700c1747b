// What taking state costs the steps beside it: not at all, as a snapshot that a thread reads, and as a copy.
#include <fmt/format.h>
#include <pthread.h>
#include <sys/resource.h>
#include <torch/nn/functional/loss.h>
#include <torch/utils.h>

#include <algorithm>
#include <ctime>
#include <fstream>
#include <thread>

#include <trireme/cluster/world.h>
#include <trireme/models/models.h>
#include <trireme/parallel/parallel.h>
#include <trireme/state/image.h>

#include "../bench.h"

namespace trireme::tools {
namespace {

constexpr int kWarm = 2, kSteps = 6;  // of a turn: not counted, and counted

/// How state is taken, and at which speed it is read then, as by a disk: bytes a second and rank, 0 for at once.
struct Way {
  const char* name;
  bool snapshot, image;
  double speed;
};
constexpr std::array kWays = {Way{"none", false, false, 0}, Way{"snapshot", true, false, 0},
                              Way{"snapshot-to-disk", true, false, 300e6}, Way{"copy", false, true, 0}};

/// Of this thread: what other programs on the machine take is not in it.
double processor_ms() {
  timespec used{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &used);
  return static_cast<double>(used.tv_sec) * 1e3 + static_cast<double>(used.tv_nsec) * 1e-6;
}

/// A thread that reads a snapshot and lets go of it, when nobody else needs the core.
std::thread reader_of(std::shared_ptr<state::Snapshot> snapshot, double speed) {
  std::thread thread([snapshot = std::move(snapshot), speed] {
    setpriority(PRIO_PROCESS, static_cast<id_t>(gettid()), 19);
    std::vector<std::byte> buffer(state::Snapshot::kChunk);
    const auto start = Clock::now();
    size_t bytes = 0;
    snapshot->prepare();
    for (size_t part = 0; part < snapshot->parts().size(); part++) {
      const size_t size = snapshot->parts()[part].range.size();
      for (size_t at = 0, some = 0; at < size; at += some) {
        some = std::min(buffer.size(), size - at);
        snapshot->read(part, at, std::span(buffer).first(some));
        snapshot->release(part, at + some);
        bytes += some;
        const double early = speed > 0 ? static_cast<double>(bytes) / speed - seconds_since(start) : 0;
        if (early > 0) std::this_thread::sleep_for(Seconds(early));
      }
    }
  });
  pthread_setname_np(thread.native_handle(), "trireme-reader");
  return thread;
}

/// What was measured of a way, over all turns: milliseconds.
struct Record {
  std::vector<double> taking, first, longest, all;
  std::vector<double> processor, first_processor;  // the same of this thread's processor time
  std::vector<double> saved;                       // MB
};

/// One turn: state is taken in front of the first step that counts.
class Turns {
 public:
  Turns(Parallel& train, std::function<torch::Tensor()> loss)
      : train_(train), loss_(std::move(loss)), owners_(train.owners()) {}

  void turn(const Way& way, Record& record) {
    for (int step = 0; step < kWarm; step++) train_.step(loss_);
    const auto start = Clock::now();
    const double used = processor_ms();
    std::shared_ptr<state::Snapshot> snapshot;
    std::thread reader;
    state::Image image;
    if (way.snapshot) reader = reader_of(snapshot = train_.snapshot(owners_), way.speed);
    if (way.image) train_.visit(image);
    record.taking.push_back(seconds_since(start) * 1e3);
    double longest = 0;
    for (int step = 0; step < kSteps; step++) {
      const auto begin = step == 0 ? start : Clock::now();
      const double used_before = step == 0 ? used : processor_ms();
      train_.step(loss_);
      const double ms = seconds_since(begin) * 1e3;
      if (step == 0) record.first.push_back(ms);
      record.all.push_back(ms);
      (step == 0 ? record.first_processor : record.processor).push_back(processor_ms() - used_before);
      longest = std::max(longest, ms);
    }
    record.longest.push_back(longest);
    if (reader.joinable()) reader.join();
    if (snapshot) record.saved.push_back(static_cast<double>(snapshot->saved_bytes()) / 1e6);
  }

 private:
  Parallel& train_;
  std::function<torch::Tensor()> loss_;
  state::OwnerMap owners_;
};

double middle_of(std::vector<double> values) {
  if (values.empty()) return 0;
  const auto middle = values.begin() + static_cast<ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

std::string line_of(const Way& way, const Record& record, double parameters) {
  return fmt::format(
      "{{\"way\": \"{}\", \"mb\": {:.1f}, \"taking_ms\": {:.3f}, \"first_step_ms\": {:.2f}, \"longest_step_ms\": "
      "{:.2f}, \"median_step_ms\": {:.2f}, \"best_longest_ms\": {:.2f}, \"worst_step_ms\": {:.2f}, \"saved_mb\": "
      "{:.1f}, \"first_processor_ms\": {:.2f}, \"best_first_processor_ms\": {:.2f}, \"processor_ms\": {:.2f}}}\n",
      way.name, parameters, middle_of(record.taking), middle_of(record.first), middle_of(record.longest),
      middle_of(record.all), *std::min_element(record.longest.begin(), record.longest.end()),
      *std::max_element(record.all.begin(), record.all.end()), middle_of(record.saved),
      middle_of(record.first_processor),
      *std::min_element(record.first_processor.begin(), record.first_processor.end()), middle_of(record.processor));
}

}  // namespace

int measure_snapshots(const std::string& out, int turns) {
  World world = join({.timeout_setting = ""});
  torch::manual_seed(0);
  auto net = models::mlp({784, 4608, 4608, 10});  // 100 MB
  const torch::Tensor x = torch::randn({32, 784}), y = torch::randint(0, 10, {32}, torch::kInt64);
  std::array<Record, kWays.size()> records;
  {
    Parallel train(world, *net, space::momentum({.lr = 1e-3}));
    Turns all(train, [&] { return torch::nn::functional::cross_entropy(net->forward(x), y); });
    for (int turn = 0; turn < turns + 1; turn++)
      for (size_t i = 0; i < kWays.size(); i++) {
        const size_t who = (i + static_cast<size_t>(turn)) % kWays.size();
        Record warm;
        all.turn(kWays[who], turn == 0 ? warm : records[who]);
      }
    const double mb = static_cast<double>(train.exchange().flat().layout().bytes()) / 1e6;
    std::ofstream file;
    if (world.first()) file.open(out, std::ios::app);
    for (size_t i = 0; world.first() && i < kWays.size(); i++) file << line_of(kWays[i], records[i], mb);
  }
  return 0;
}

}  // namespace trireme::tools
