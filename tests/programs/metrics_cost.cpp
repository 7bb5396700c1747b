// What metrics cost: steps of one model, by turns in a world that measures times and in one that does not.
//
//   build/tests/program_metrics_cost [rounds]
//
// Prints a JSON object: the median over rounds of (seconds with) / (seconds without) − 1, the median seconds of a step,
// and the nanoseconds of a counter, a histogram, a lap and a look at the clock. Two ranks, threads of this process.
#include <fmt/format.h>
#include <torch/torch.h>

#include <algorithm>
#include <cstdlib>
#include <optional>
#include <thread>
#include <vector>

#include <trireme/trireme.h>

namespace {

constexpr int kRanks = 2, kSteps = 60;

double median(std::vector<double> values) {
  std::nth_element(values.begin(), values.begin() + static_cast<ptrdiff_t>(values.size() / 2), values.end());
  return values[values.size() / 2];
}

/// A small model: the smaller a step, the more its metrics weigh.
struct Training {
  Training(int rank, const std::string& job, bool timed)
      : world({.rank = rank, .size = kRanks, .job = job, .launcher = "test"}, {.timed = timed}) {
    torch::manual_seed(1);
    net = torch::nn::Sequential(torch::nn::Linear(64, 64), torch::nn::ReLU(), torch::nn::Linear(64, 10));
    train.emplace(world, *net, trireme::sgd({.lr = 0.01}));
    x = torch::randn({16, 64});
    y = torch::randint(0, 10, {16});
  }
  double seconds_of_step() {
    const auto begin = trireme::Clock::now();
    for (int i = 0; i < kSteps; i++) train->step([&] { return torch::cross_entropy_loss(net->forward(x), y); });
    return trireme::seconds_since(begin) / kSteps;
  }
  trireme::World world;
  torch::nn::Sequential net{nullptr};
  std::optional<trireme::Parallel> train;
  torch::Tensor x, y;
};

/// Of one call, in nanoseconds.
template <class Call>
double cost_of(const Call& call) {
  constexpr int kCalls = 2'000'000;
  const auto begin = trireme::Clock::now();
  for (int i = 0; i < kCalls; i++) call(i);
  return trireme::seconds_since(begin) / kCalls * 1e9;
}

}  // namespace

int main(int argc, char** argv) {
  namespace metrics = trireme::metrics;
  const int rounds = argc > 1 ? std::atoi(argv[1]) : 200;
  std::vector<double> ratios, steps;
  std::vector<std::thread> ranks;
  for (int rank = 0; rank < kRanks; rank++)
    ranks.emplace_back([&, rank] {
      at::set_num_threads(1);
      const std::string job = fmt::format("metrics-cost-{}", getpid());
      Training with(rank, job + "-with", true), without(rank, job + "-without", false);
      for (int round = -20; round < rounds; round++) {
        const bool first = round % 2 == 0;
        const double one = (first ? with : without).seconds_of_step(), two = (first ? without : with).seconds_of_step();
        if (rank != 0 || round < 0) continue;
        ratios.push_back((first ? one / two : two / one) - 1);
        steps.push_back(first ? two : one);
      }
    });
  for (std::thread& rank : ranks) rank.join();
  metrics::Registry registry;
  metrics::Counter counter(&registry, {"things", "things", "Things"});
  metrics::Histogram histogram(&registry, {"seconds", "seconds", "Seconds"});
  metrics::Spans spans(&registry);
  metrics::Laps laps(spans, true);
  const double of_counter = cost_of([&](int) { counter.add(); }),
               of_histogram = cost_of([&](int i) { histogram.add(i * 1e-6); }),
               of_lap = cost_of([&](int) { laps.end("lap", histogram); });
  trireme::Clock::time_point now;
  const double of_clock = cost_of([&](int) { now = std::max(now, trireme::Clock::now()); });
  fmt::print(
      "{{\"median_cost_of_step\": {:.5f}, \"median_step_seconds\": {:.3g}, \"rounds\": {}, \"counter_ns\": {:.2f}, "
      "\"histogram_ns\": {:.2f}, \"lap_ns\": {:.2f}, \"clock_ns\": {:.2f}}}\n",
      median(ratios), median(steps), ratios.size(), of_counter, of_histogram, of_lap, of_clock);
}
