// The processes that `trireme tune` starts: allreduces between machines, all in one way.
#include <fmt/format.h>

#include <algorithm>
#include <fstream>
#include <memory>
#include <vector>

#include <trireme/cluster/world.h>

#include "../commands.h"

namespace trireme::tools {
namespace {

constexpr int kWarm = 2;

struct Settings {
  std::string out, engine;
  std::vector<size_t> sizes;
  size_t direct_bytes = 0;
};

/// All lanes at once, as in training, and each on its own time.
double median_seconds(comm::Communicator& lane, std::vector<float>& data, size_t bytes) {
  const int repetitions = static_cast<int>(std::clamp<size_t>((size_t{8} << 20) / bytes, 5, 100));
  std::vector<double> times;
  for (int i = 0; i < kWarm + repetitions; i++) {
    lane.barrier("together");
    const auto start = Clock::now();
    lane.allreduce(data.data(), bytes / sizeof(float), DType::f32, Op::sum, "x");
    if (i >= kWarm) times.push_back(seconds_since(start));
  }
  std::nth_element(times.begin(), times.begin() + repetitions / 2, times.end());
  return times[static_cast<size_t>(repetitions / 2)];
}

int measure_lanes(const Settings& s) {
  World world = join({.timeout_setting = "", .engine = s.engine, .direct_bytes = s.direct_bytes});
  std::string text = fmt::format("{{\"machines\": {}}}\n", world.machines());
  std::vector<float> data(s.sizes.empty() ? 0 : *std::max_element(s.sizes.begin(), s.sizes.end()) / sizeof(float), 1.f);
  for (size_t bytes : s.sizes) {
    world.comm().barrier("next size");
    if (world.lane() != nullptr)
      text +=
          fmt::format("{{\"bytes\": {}, \"us\": {:.4f}}}\n", bytes, median_seconds(*world.lane(), data, bytes) * 1e6);
  }
  if (world.first()) std::ofstream(s.out) << text;
  return 0;
}

}  // namespace

Run add_tune_worker(CLI::App& app, const Invocation&) {
  auto s = std::make_shared<Settings>();
  CLI::App* command = app.add_subcommand("tune", "Measure allreduces between machines");
  command->add_option("--out", s->out, "File for the result, JSON lines")->required();
  command->add_option("--engine", s->engine, "As in `trireme train`");
  command->add_option("--sizes", s->sizes, "Bytes, separated by commas")->delimiter(',')->required();
  command->add_option("--direct-bytes", s->direct_bytes, "The largest size that goes the direct way")->required();
  return [s] { return measure_lanes(*s); };
}

}  // namespace trireme::tools
