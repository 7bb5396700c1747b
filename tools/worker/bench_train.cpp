// The measured training step of ours; bench/peers/ddp_train.py does the same.
#include <fmt/format.h>
#include <torch/nn/functional/loss.h>
#include <torch/utils.h>

#include <deque>
#include <fstream>

#include <trireme/cluster/world.h>
#include <trireme/models/models.h>
#include <trireme/parallel/parallel.h>
#include <trireme/train/memory_format.h>

#include "../bench.h"

namespace trireme::tools {
namespace {

struct Case {
  std::string model;  // what stands before the dash
  int64_t batch;      // per worker
  int steps;          // timed
};

Case case_named(const std::string& name) {
  const size_t dash = name.find('-');
  const std::string model = name.substr(0, dash);
  const int64_t batch = std::stoll(name.substr(dash + 1));
  const int steps = model == "mlp2048" ? 120 : 400;
  return {model, batch, batch > 32 ? steps / 2 : steps};
}

torch::nn::Sequential make(const std::string& model) {
  if (model == "lenet") return models::lenet();
  const int64_t width = std::stoll(model.substr(3));  // "mlp512"
  return models::mlp({784, width, width, 10});
}

/// A model of a case, and what a rank feeds it with.
struct Subject {
  Subject(World& world, const std::string& name, const Case& c)
      : x(torch::randn({c.batch, 1, 28, 28})), y(torch::randint(0, 10, {c.batch}, torch::kInt64)) {
    torch::manual_seed(0);
    net = make(c.model);
    const models::Model model(net, data::Task::classify);
    channels_last = train::choose_memory_format(world, model, x, y, name, "").channels_last;
  }
  std::unique_ptr<Parallel> prepare(World& world, ParallelOptions options) {
    options.overlap_next = true;
    options.channels_last = channels_last;
    return std::make_unique<Parallel>(world, *net, space::momentum({.lr = 0.01, .momentum = 0.9}), options);
  }
  torch::Tensor loss() { return torch::nn::functional::cross_entropy(net->forward(x), y); }

  torch::Tensor x, y;
  torch::nn::Sequential net{nullptr};
  bool channels_last = false;
};

/// Milliseconds of a step, over some; the steps before them warm the caches for this model.
double timed(Subject& subject, Parallel& train, int before, int steps) {
  Clock::time_point start;
  for (int step = 0; step < before + steps; step++) {
    if (step == before) start = Clock::now();
    train.step([&] { return subject.loss(); });
  }
  return seconds_since(start) / steps * 1e3;
}

/// Steps in which codecs take turns, where they are chosen from.
void until_chosen(Subject& subject, Parallel& train) {
  const exchange::Compression* const chosen = train.exchange().compression();
  while (chosen != nullptr && !chosen->settled) train.step([&] { return subject.loss(); });
}

/// One of several ways to make a step.
struct Way {
  std::string name;
  ParallelOptions options;
};

/// A model for each way, which take turns of a few steps. Rank 0 writes a line for each turn: milliseconds of a step,
/// by way.
int take_turns(const std::string& out, const std::string& name, int turns, const std::vector<Way>& ways) {
  const Case c = case_named(name);
  World world = join({.timeout_setting = ""});
  std::deque<Subject> subjects;
  std::deque<std::unique_ptr<Parallel>> trained;
  for (const Way& way : ways) trained.push_back(subjects.emplace_back(world, name, c).prepare(world, way.options));
  std::ofstream file;
  if (world.first()) file.open(out, std::ios::app);
  const int steps = std::max(4, c.steps / 20);
  for (int turn = 0; turn < turns + 1; turn++) {  // the first is not counted
    std::vector<double> ms(ways.size());
    for (size_t i = 0; i < ways.size(); i++) {
      const size_t who = (i + static_cast<size_t>(turn)) % ways.size();
      ms[who] = timed(subjects[who], *trained[who], 2, steps);
    }
    if (!world.first() || turn == 0) continue;
    std::string line;
    for (size_t i = 0; i < ways.size(); i++)
      line += fmt::format("{}\"{}\": {:.4f}", i == 0 ? "" : ", ", ways[i].name, ms[i]);
    file << "{" << line << "}\n";
  }
  while (!trained.empty()) trained.pop_back();
  return 0;
}

}  // namespace

int measure_guards(const std::string& out, const std::string& name, int turns) {
  std::vector<Way> ways;
  for (const char* guard : kGuards) {
    ParallelOptions options;
    if (guard == std::string("none")) options.exchange.on_nan = exchange::OnNan::ignore;
    if (guard == std::string("clip")) options.exchange.clip = 1e-6;  // below any norm: all of them are scaled
    ways.push_back({guard, options});
  }
  return take_turns(out, name, turns, ways);
}

int measure_elastic(const std::string& out, const std::string& name, int turns) {
  ParallelOptions on;
  on.exchange.elastic = true;
  return take_turns(out, name, turns, {{"on", on}, {"off", {}}});
}

int measure_step(const std::string& out, const StepMeasure& what) {
  Case c = case_named(what.name);
  if (what.steps > 0) c.steps = what.steps;
  const bool first = cluster::place_here().rank == 0;
  World world = what.alone ? World({0, 1, "", "alone"}, {}) : join({.timeout_setting = ""});
  Subject subject(world, what.name, c);
  ParallelOptions options;
  options.exchange.candidates = compress::candidates_named(what.codec);
  if (!options.exchange.chooses()) options.exchange.codec = compress::spec_named(what.codec);
  double ms = 0;
  size_t bytes = 0;
  std::string reason;
  {
    const auto train = subject.prepare(world, options);
    bytes = train->exchange().flat().layout().bytes();
    until_chosen(subject, *train);
    ms = timed(subject, *train, std::min(20, c.steps), c.steps);
    if (const exchange::Compression* chosen = train->exchange().compression()) reason = chosen->judgement.reason;
  }
  // Unrelated processes each have a speed of their own: all tell it.
  if (first || what.alone)
    std::ofstream(out, std::ios::app) << fmt::format(
        "{{\"case\": \"{}\", \"ms_per_step\": {:.4f}, \"bytes\": {}, \"reason\": \"{}\"}}\n", what.name, ms, bytes,
        reason);
  return 0;
}

}  // namespace trireme::tools
