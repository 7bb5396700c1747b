// `trireme bench balance`: what shares by speed make of a slow worker, and what they cost where all are equally fast.
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <memory>

#include <trireme/base/error.h>

#include "bench.h"
#include "commands.h"

namespace trireme::tools {
namespace {

constexpr double kToSettle = 4;  // seconds in which shares are found

struct Settings {
  std::string worker;
  int rounds = 3, workers = 2;
  std::vector<std::string> cases = {"lenet-32", "mlp512-32"};
  double slower = 2, seconds = 6;
};

/// "lenet", or "mlp:512,512" of mlp512.
std::string model_of(const std::string& name) {
  const std::string model = name.substr(0, name.find('-'));
  return model == "lenet" ? model : fmt::format("mlp:{0},{0}", model.substr(3));
}

/// Samples a second of a training, once its shares are settled; -1: it failed.
double rate_of(const Settings& s, const std::string& name, const std::string& balance, bool slow) {
  const int64_t batch = s.workers * std::stoll(name.substr(name.find('-') + 1));
  std::vector<std::string> command = {s.worker,
                                      "train",
                                      model_of(name),
                                      "--data=synthetic:6000",
                                      fmt::format("--workers={}", s.workers),
                                      fmt::format("--batch={}", batch),
                                      "--epochs=100000",
                                      "--lr=0.01",
                                      fmt::format("--stop=time={:g}s", kToSettle + s.seconds),
                                      "--progress=none",
                                      "--balance=" + balance,
                                      "--report={out}"};
  if (slow) command.push_back(fmt::format("--straggler={}:{}", s.workers - 1, s.slower));
  std::string text;
  for (const std::string& line : run_and_read("ours", s.workers, command)) text += line;
  if (text.empty()) return -1;
  double begun = 0, samples = 0, seconds = 0;
  const auto report = nlohmann::json::parse(text);
  for (const auto& epoch : report["epochs"]) {
    const double took = epoch["seconds"];
    begun += took;
    if (begun - took < kToSettle) continue;
    samples += epoch["samples_per_second"].get<double>() * took;
    seconds += took;
  }
  return seconds > 0 ? samples / seconds : -1;
}

void bench_case(const Settings& s, const std::string& name) {
  Measurement slow{.bench = "balance",
                   .name = fmt::format("{}x{}-slow-{:g}", name, s.workers, s.slower),
                   .metric = "samples/s",
                   .samples = {},
                   .more_is_better = true};
  Measurement even = slow;
  even.name = fmt::format("{}x{}-even", name, s.workers);
  const double ideal = (s.workers - 1 + 1 / s.slower) / s.workers;  // of the speed of as many that are all fast
  alternate(s.rounds, {[&] { add_sample(slow, "ours", rate_of(s, name, "auto", true)); },
                       [&] { add_sample(slow, "even-shares", rate_of(s, name, "even", true)); },
                       [&] { add_sample(even, "ours", rate_of(s, name, "auto", false)); },
                       [&] {
                         const double rate = rate_of(s, name, "even", false);
                         add_sample(even, "even-shares", rate);
                         add_sample(slow, "ideal", rate * ideal);
                       }});
  print_measurement(slow);
  print_measurement(even);
}

int run(const Settings& s) {
  for (const std::string& name : s.cases)
    if (std::find(kTrainCases.begin(), kTrainCases.end(), name) == kTrainCases.end())
      fail<InvalidArgument>("unknown case '{}': one of {}", name, fmt::join(kTrainCases, ", "));
  for (const std::string& name : s.cases) bench_case(s, name);
  return 0;
}

}  // namespace

Run add_bench_balance(CLI::App& bench, const Invocation& invocation) {
  auto s = std::make_shared<Settings>();
  s->worker = invocation.worker;
  CLI::App* command = bench.add_subcommand(
      "balance",
      "Trainings with one slow worker: with shares by speed (--balance auto), with even ones, and what the sum of the "
      "speeds would be; and what --balance auto costs where nobody is slow");
  command->add_option("--rounds", s->rounds, "Of all four trainings; the median counts")
      ->capture_default_str()
      ->check(CLI::PositiveNumber);
  command->add_option("--case", s->cases, "Cases, separated by commas")->delimiter(',')->capture_default_str();
  command->add_option("--workers", s->workers, "Of each training")->capture_default_str()->check(CLI::Range(2, 64));
  command->add_option("--slower", s->slower, "How many times as long the last worker takes for a sample")
      ->capture_default_str()
      ->check(CLI::Range(1.0, 100.0));
  command->add_option("--seconds", s->seconds, "Of a training that are measured, after 4 s in which shares are found")
      ->capture_default_str()
      ->check(CLI::PositiveNumber);
  return [s] { return run(*s); };
}

}  // namespace trireme::tools
