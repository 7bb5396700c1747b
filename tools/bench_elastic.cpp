// `trireme bench elastic`: what a crew that may change costs while nobody dies, and how long a death holds it up.
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <cmath>
#include <memory>

#include <trireme/base/error.h>

#include "bench.h"
#include "chaos_plan.h"
#include "commands.h"
#include "disturb.h"
#include "peers.h"
#include "victim_job.h"

namespace trireme::tools {
namespace {

constexpr int kTurns = 20;  // of each round
constexpr int kPriceRanks = 2;
constexpr Seconds kToStop{10};

struct Settings {
  std::string self, worker;
  int rounds = 5;
  std::vector<std::string> cases = {"lenet-32", "mlp512-32", "mlp2048-32"};
  int workers = 4, tries = 100, spares = 1;
  double every = 0.5;
  uint64_t seed = 1;
  bool peer = false, no_price = false;
  int peer_tries = 5, peer_every = 100;
};

int64_t batch_of(const std::string& name) { return std::stoll(name.substr(name.find('-') + 1)); }

/// Samples a second with steps that survive a death, against steps that do not.
void bench_price(const Settings& s, const std::string& name) {
  Measurement m{.bench = "elastic", .name = name, .metric = "samples/s", .samples = {}, .more_is_better = true};
  const double samples = static_cast<double>(kPriceRanks * batch_of(name));
  const std::vector<std::string> worker = {s.worker, "bench", "--out={out}", "--case=" + name,
                                           fmt::format("--elastic={}", kTurns * s.rounds)};
  for (const std::string& line : run_and_read("elastic", kPriceRanks, worker)) {
    add_sample(m, "ours", samples / number_in({line}, "on") * 1e3);
    add_sample(m, "off", samples / number_in({line}, "off") * 1e3);
  }
  print_measurement(m);
}

double rounded(double value) { return std::stod(fmt::format("{:.4g}", value)); }

nlohmann::ordered_json line_of(const std::string& name, const std::vector<double>& values) {
  const Summary summary = summary_of(values);
  nlohmann::ordered_json line = {{"bench", "elastic"},
                                 {"case", name},
                                 {"metric", "ms"},
                                 {"ours", rounded(summary.median)},
                                 {"p99", rounded(summary.p99)},
                                 {"most", rounded(summary.most)},
                                 {"tries", summary.tries}};
  line["samples"] = nlohmann::ordered_json::array();
  for (double value : values) line["samples"].push_back(rounded(value));
  return line;
}

/// One job that never ends by itself. Each kill waits for a crew at full strength, and for its spares.
Disturbance kill_workers(const Settings& s, int spares) {
  std::vector<std::string> command = {s.self,
                                      "train",
                                      "lenet",
                                      "--data",
                                      "synthetic:20000",
                                      "--epochs",
                                      "100000",
                                      "--batch",
                                      std::to_string(32 * s.workers),
                                      "--workers",
                                      std::to_string(s.workers),
                                      "--on-failure",
                                      "replace",
                                      "--progress",
                                      "none"};
  if (spares > 0) command.insert(command.end(), {"--spares", std::to_string(spares)});
  VictimJob job(command, scratch() / fmt::format("elastic-{}.log", spares));
  const std::vector<Blow> plan = plan_of({.seed = s.seed, .kills = s.tries, .every = s.every});
  Disturbance done = disturb(job, plan, {.leave = s.workers - 1, .full = s.workers, .spares = spares});
  if (const int signal = job.stop_wanted(); signal != 0) {
    job.end(kToStop);
    std::exit(128 + signal);
  }
  if (!done.trouble.empty()) {
    fmt::print(stderr, "bench: {}. The last lines of the job:\n", done.trouble);
    for (const std::string& line : job.last_lines(10)) fmt::print(stderr, "  {}\n", line);
  }
  job.end(kToStop);
  return done;
}

/// Milliseconds from the kill to the next step of a DDP that starts anew, and steps that it had to do again.
std::vector<double> bench_peer(const Settings& s) {
  std::vector<double> ms, lost;
  for (const std::string& line :
       run_and_read("DDP", 1,
                    {kPython, peer_program("ddp_restart.py"), "{out}", "lenet-32", std::to_string(s.workers),
                     std::to_string(s.peer_tries), std::to_string(s.peer_every)})) {
    ms.push_back(number_in({line}, "seconds") * 1e3 - number_in({line}, "step_ms"));
    lost.push_back(number_in({line}, "steps_lost"));
  }
  if (ms.empty()) return ms;
  nlohmann::ordered_json line = line_of(fmt::format("kill-{}-ddp-restart", s.workers), ms);
  line["peer"] = "PyTorch DDP, restarted from its last checkpoint";
  line["checkpoint_every_steps"] = s.peer_every;
  line["steps_lost"] = median(lost);
  fmt::print("{}\n", line.dump());
  std::fflush(stdout);
  return ms;
}

void print_recovery(const std::string& name, const std::vector<double>& values, const Disturbance& done,
                    const std::vector<double>& peer) {
  nlohmann::ordered_json line = line_of(name, values);
  std::vector<double> steps;
  for (const Struck& one : done.struck)
    if (one.step_ms) steps.push_back(*one.step_ms);
  line["step_ms"] = rounded(median(steps));
  line["peers"] = nlohmann::ordered_json::object();
  line["ratio"] = nlohmann::ordered_json::object();
  if (!peer.empty() && !values.empty()) {
    line["peers"]["ddp-restart"] = rounded(median(peer));
    line["ratio"]["ddp-restart"] = rounded(median(peer) / std::max(median(values), 1e-3));
  }
  fmt::print("{}\n", line.dump());
  std::fflush(stdout);
}

int run(const Settings& s) {
  for (const std::string& name : s.cases)
    if (std::find(kTrainCases.begin(), kTrainCases.end(), name) == kTrainCases.end())
      fail<InvalidArgument>("unknown case '{}': one of {}", name, fmt::join(kTrainCases, ", "));
  if (!s.no_price)
    for (const std::string& name : s.cases) bench_price(s, name);
  std::vector<double> peer;
  if (s.peer && !has_python_torch()) leave_out("ddp", "apt-get install python3-torch");
  if (s.peer && has_python_torch()) peer = bench_peer(s);
  if (s.tries == 0) return 0;
  const Disturbance bare = kill_workers(s, 0);
  print_recovery(fmt::format("kill-{}", s.workers), beyond_of(bare.struck, Blow::kill), bare, peer);
  if (s.spares == 0) return bare.trouble.empty() ? 0 : 1;
  const Disturbance spared = kill_workers(s, s.spares);
  print_recovery(fmt::format("kill-{}-spares-{}", s.workers, s.spares), beyond_of(spared.struck, Blow::kill), spared,
                 peer);
  print_recovery(fmt::format("kill-{}-spares-{}-to-full-strength", s.workers, s.spares),
                 full_of(spared.struck, Blow::kill), spared, peer);
  return bare.trouble.empty() && spared.trouble.empty() ? 0 : 1;
}

}  // namespace

Run add_bench_elastic(CLI::App& bench, const Invocation& invocation) {
  auto s = std::make_shared<Settings>();
  s->self = invocation.program;
  s->worker = invocation.worker;
  CLI::App* command = bench.add_subcommand(
      "elastic",
      "Steps that survive a worker's death against steps that do not; and from kill -9 of a worker to the next step of "
      "the others, beyond a step's own time, with a spare too");
  command->add_option("--rounds", s->rounds, "Of steps with and without; the median counts")
      ->capture_default_str()
      ->check(CLI::PositiveNumber);
  command->add_option("--case", s->cases, "Cases of steps, separated by commas")->delimiter(',')->capture_default_str();
  command->add_flag("--no-price", s->no_price, "No steps while nobody dies");
  command->add_option("--workers", s->workers, "Of the job whose workers are killed")
      ->capture_default_str()
      ->check(CLI::Range(2, 64));
  command->add_option("--tries", s->tries, "Workers to kill, one after the other; 0: none")
      ->capture_default_str()
      ->check(CLI::NonNegativeNumber);
  command->add_option("--spares", s->spares, "Of a second job; 0: there is none")
      ->capture_default_str()
      ->check(CLI::Range(0, 64));
  command->add_option("--every", s->every, "Seconds between a crew at full strength and the next kill, on average")
      ->capture_default_str()
      ->check(CLI::PositiveNumber);
  command->add_option("--seed", s->seed, "Of the moments and victims")->capture_default_str();
  command->add_flag("--peer", s->peer, "The same kill in PyTorch DDP, which is restarted from its last checkpoint");
  command->add_option("--peer-tries", s->peer_tries, "Kills there")->capture_default_str()->check(CLI::PositiveNumber);
  command->add_option("--peer-every", s->peer_every, "Steps between two checkpoints there")
      ->capture_default_str()
      ->check(CLI::PositiveNumber);
  return [s] { return run(*s); };
}

}  // namespace trireme::tools
