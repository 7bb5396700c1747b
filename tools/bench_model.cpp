// `trireme bench model`: a GPT divided in several ways, against one worker and against the same in PyTorch.
#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <memory>

#include <trireme/base/error.h>
#include <trireme/base/nearest.h>

#include "bench.h"
#include "bench_flags.h"
#include "commands.h"
#include "hosts.h"
#include "peers.h"

namespace trireme::tools {
namespace {

/// A way to divide the model among the ranks, and what it is compared with.
struct Way {
  const char* name;
  const char* peer;  // of bench/peers/gpt_train.py; "": none
  bool tensor = false;
  int zero = 0;
};
constexpr std::array kWays = {Way{"data", "data"}, Way{"tensor", "tensor", true}, Way{"zero1", "", false, 1},
                              Way{"zero2", "", false, 2}, Way{"zero3", "", false, 3}};

struct Settings {
  std::string self, worker;  // this program, and the one with libtorch
  int rounds = 5;
  int ranks = 2;
  std::vector<std::string> ways;
  HostsFlags hosts;
  ModelMeasure model;
};

std::vector<std::string> run(const Settings& s, const std::string& what, int ranks,
                             const std::vector<std::string>& command) {
  return s.hosts.given() && ranks > 1 ? run_on_hosts(what, s.hosts.options(s.self), command)
                                      : run_and_read(what, ranks, command);
}

double ours(const Settings& s, const std::string& what, int ranks, int tensor, int zero) {
  std::vector<std::string> words = {
      s.worker, "bench", "--out={out}", "--gpt", fmt::format("--tensor={}", tensor), fmt::format("--zero={}", zero)};
  for (const std::string& word : words_of(s.model)) words.push_back(word);
  return number_in(run(s, what, ranks, words), "ms_per_step");
}

double theirs(const Settings& s, int ranks, const std::string& layout) {
  const ModelMeasure& m = s.model;
  const std::string spec = fmt::format("{},{},{},{},{},{},{}", m.layers, m.width, m.heads, m.context, m.vocabulary,
                                       m.batch, std::max(3, m.steps / 3));
  return number_in(run(s, "PyTorch", ranks, {kPython, peer_program("gpt_train.py"), "{out}", layout, spec}),
                   "ms_per_step");
}

/// The same batch, so that a ratio to one worker is the speed-up. Sharded states are compared with none.
void bench_way(const Settings& s, const Way& way) {
  const ModelMeasure& m = s.model;
  Measurement row{
      "model",
      fmt::format("gpt-{}x{}-{}{}{}", m.layers, m.width, way.name, s.ranks, s.hosts.given() ? "@" + s.hosts.hosts : ""),
      "ms",
      {}};
  std::vector<std::function<void()>> who = {
      [&] { add_sample(row, "ours", ours(s, way.name, s.ranks, way.tensor ? s.ranks : 1, way.zero)); }};
  if (way.zero > 0)
    who.push_back([&] { add_sample(row, "zero0", ours(s, "zero0", s.ranks, 1, 0)); });
  else
    who.push_back([&] { add_sample(row, "one-worker", ours(s, "one worker", 1, 1, 0)); });
  if (*way.peer != '\0' && has_python_torch())
    who.push_back([&] { add_sample(row, way.tensor ? "gloo" : "ddp", theirs(s, s.ranks, way.peer)); });
  alternate(s.rounds, who);
  print_measurement(row);
}

/// Ways that divide the samples give each worker as many: others would compute another batch than one worker does.
void check_samples(const Settings& s, const Way& way) {
  const int64_t samples = s.model.batch, ranks = s.ranks;
  if (way.tensor || samples % ranks == 0) return;
  const int64_t below = samples / ranks * ranks, above = below + ranks;
  fail<InvalidArgument>("--samples {}: {} workers cannot divide them evenly ({}): use {}, or --way tensor", samples,
                        ranks, way.name, below > 0 ? fmt::format("{} or {}", below, above) : fmt::format("{}", above));
}

int bench(Settings& s) {
  if (!has_python_torch()) leave_out("pytorch", "apt-get install python3-torch");
  std::vector<std::string> known;
  for (const Way& way : kWays) known.emplace_back(way.name);
  for (const std::string& name : s.ways)
    if (std::find(known.begin(), known.end(), name) == known.end())
      fail<InvalidArgument>("unknown way '{}'{}", name, did_you_mean(name, known));
  if (s.hosts.given()) {
    s.ranks = 0;
    for (const auto& [name, slots] : s.hosts.options(s.self).hosts) s.ranks += slots;
  }
  std::vector<Way> chosen;
  for (const Way& way : kWays)
    if (s.ways.empty() || std::find(s.ways.begin(), s.ways.end(), way.name) != s.ways.end()) chosen.push_back(way);
  for (const Way& way : chosen) check_samples(s, way);
  for (const Way& way : chosen) bench_way(s, way);
  return 0;
}

}  // namespace

Run add_bench_model(CLI::App& bench_command, const Invocation& invocation) {
  auto s = std::make_shared<Settings>();
  s->self = invocation.program;
  s->worker = invocation.worker;
  CLI::App* command = bench_command.add_subcommand(
      "model",
      "A step of a GPT divided over workers: data and tensor parallelism against one worker (the ratio is the "
      "speed-up) and against PyTorch on Gloo; ZeRO against none");
  command->add_option("--way", s->ways, "data, tensor, zero1, zero2, zero3, separated by commas; default: all")
      ->delimiter(',');
  command->add_option("--rounds", s->rounds, "Alternate rounds; the median counts")
      ->capture_default_str()
      ->check(CLI::PositiveNumber);
  command->add_option("--ranks", s->ranks, "Workers on this machine")->capture_default_str()->check(CLI::Range(2, 64));
  add_model_measure(*command, s->model);
  add_hosts_flags(*command, s->hosts);
  return [s, command] {
    refuse_without_hosts(*command, s->hosts);
    return bench(*s);
  };
}

}  // namespace trireme::tools
