// Measured steps of models in stages, and how long stages wait in them; bench/peers/pipe_train.py is PyTorch's.
#include <fmt/format.h>
#include <nlohmann/json.hpp>
#include <torch/utils.h>

#include <algorithm>
#include <fstream>
#include <map>
#include <optional>

#include <trireme/base/clock.h>
#include <trireme/base/error.h>
#include <trireme/cluster/world.h>
#include <trireme/parallel/parallel.h>
#include <trireme/stages/check.h>
#include <trireme/stages/stage_costs.h>
#include <trireme/stages/timeline.h>

#include "../bench.h"
#include "pipeline_subject.h"

namespace trireme::tools {
namespace {

using torch::Tensor;

constexpr int kWarmUp = 2;

/// Sees from within when a step's first pass of this rank begins, and how many graphs of its parts are alive. Outlives
/// the pipeline.
class Watch {
 public:
  void over(layers::Cut& cut) {
    for (layers::Part& part : cut.parts)
      part.run = [this, run = std::move(part.run)](layers::Carried carried) {
        if (!began_) began_ = Clock::now();
        layers::Carried out = run(std::move(carried));
        out.x.register_hook([alive = std::make_shared<Alive>(this)](const Tensor&) {});
        return out;
      };
  }
  void next_step() { began_.reset(); }
  /// In seconds of the machine's clock, which all its processes share.
  double began() const { return Seconds(began_->time_since_epoch()).count(); }
  int peak() const { return peak_; }

 private:
  /// Part of a graph, and freed with it.
  struct Alive {
    explicit Alive(Watch* watch) : watch(watch) { watch->peak_ = std::max(watch->peak_, ++watch->held_); }
    ~Alive() { watch->held_--; }
    Alive(const Alive&) = delete;
    Alive& operator=(const Alive&) = delete;
    Watch* watch;
  };
  std::optional<Clock::time_point> began_;
  int held_ = 0, peak_ = 0;
};

/// By measured costs. Layers that sleep cost the same, and those of `even`.
layers::Cut cut_of(const Mesh& mesh, const PipelineMeasure& what, const PipelineSubject& subject, int parts,
                   int64_t micro) {
  layers::CutOptions options;
  const int64_t samples = std::max<int64_t>(1, subject.x.size(0) / micro);
  const Tensor y = subject.y.narrow(0, 0, samples);
  if (what.subject == "sleep" || what.subject == "even") {
    options.costs.assign(subject.sections.size(), 1);
  } else {
    options.example = subject.x.narrow(0, 0, samples);
    options.last = [&](const Tensor& output) { return subject.loss(output, y); };
  }
  return layers::cut(mesh, subject.net, subject.sections, parts, options);
}

space::UpdaterOptions updater_of(const PipelineMeasure& what) {
  if (what.subject == "gpt" || what.subject == "wide") return space::adamw({.lr = 3e-4});
  return space::momentum({.lr = 0.01, .momentum = 0.9});
}

/// From when all ranks begin until all have ended.
double ms_per_step(World& world, int steps, const std::function<void()>& step) {
  for (int i = 0; i < kWarmUp; i++) step();
  world.comm().barrier("begin");
  const auto start = Clock::now();
  for (int i = 0; i < steps; i++) step();
  world.comm().barrier("end");
  return seconds_since(start) / steps * 1e3;
}

/// This rank's samples of a batch.
double ms_of_whole(World& world, const PipelineMeasure& what) {
  const Mesh mesh = world.mesh({{"data", world.size()}});
  const PipelineSubject subject = make_subject(what, what.model.batch / world.size(), 1, 1);
  if (!subject.whole_loss) fail<InvalidArgument>("'{}' has no ordinary model to measure", what.subject);
  Parallel train(mesh, *subject.net, updater_of(what), {.overlap_next = true, .channels_last = what.channels_last});
  return ms_per_step(world, what.model.steps, [&] { train.step(subject.whole_loss); });
}

/// A pipeline and what trains it.
struct Staged {
  Staged(World& world, const Mesh& mesh, const PipelineMeasure& what, const stages::ScheduleSpec& schedule, int micro,
         int64_t samples, Watch* watch)
      : subject(make_subject(what, samples, world.size(), world.size() * schedule.chunks)) {
    layers::Cut cut = cut_of(mesh, what, subject, world.size() * schedule.chunks, micro);
    if (watch != nullptr) watch->over(cut);
    pipe.emplace(mesh, std::move(cut),
                 PipelineOptions{.micro = micro, .schedule = schedule, .record = watch != nullptr});
    train.emplace(mesh, *pipe, updater_of(what),
                  ParallelOptions{.exchange = {.clip = what.clip,
                                               .ahead = what.waits ? exchange::Ahead::never : exchange::Ahead::idle},
                                  .channels_last = what.channels_last});
  }
  void step() { train->step(1, subject.x, subject.y, subject.loss); }

  PipelineSubject subject;
  std::optional<Pipeline> pipe;
  std::optional<Parallel> train;
};

double middle_step(std::vector<double> values) {
  const auto middle = values.begin() + static_cast<ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

constexpr size_t kNumbers = 5;  // of a span: what it is of, begin, end

/// All stages' spans of the last step, on all ranks, on one clock.
stages::Timeline gather(const Mesh& mesh, const Pipeline& pipe, const Watch& watch) {
  const stages::Schedule& schedule = pipe.schedule();
  const std::vector<stages::Span>& spans = pipe.recorded();
  const auto first = std::find_if(spans.begin(), spans.end(),
                                  [](const auto& span) { return span.action.kind == stages::Kind::forward; });
  const double begin = watch.began() - first->begin;
  std::vector<double> mine, all;
  for (const auto& [stage, action, from, to] : spans)
    for (const double number : {static_cast<double>(action.kind), static_cast<double>(action.micro),
                                static_cast<double>(action.chunk), begin + from, begin + to})
      mine.push_back(number);
  std::vector<size_t> counts;
  for (const auto& row : schedule.rows) counts.push_back(kNumbers * row.size());
  for (const size_t count : counts) all.resize(all.size() + count);
  mesh.whole().comm().all_gather(mine.data(), all.data(), counts, DType::f64, "spans");
  std::vector<stages::Span> together;
  size_t at = 0;
  for (int stage = 0; stage < schedule.stages; stage++)
    for (size_t i = 0; i < schedule.rows[static_cast<size_t>(stage)].size(); i++, at += kNumbers)
      together.push_back(
          {stage,
           {static_cast<stages::Kind>(all[at]), static_cast<int>(all[at + 1]), static_cast<int>(all[at + 2])},
           all[at + 3],
           all[at + 4]});
  return stages::recorded(schedule, std::move(together));
}

nlohmann::json bubble_of(World& world, const PipelineMeasure& what, const std::string& name, int micro) {
  const Mesh mesh = world.mesh({{"pipeline", world.size()}});
  Watch watch;
  const int64_t samples_each = std::max<int64_t>(1, what.model.batch / 16);
  std::vector<double> shares, idle, simulated;
  std::vector<int> peak(static_cast<size_t>(world.size()));
  {
    Staged staged(world, mesh, what, stages::parse_schedule(name), micro, micro * samples_each, &watch);
    for (int step = 0; step < kWarmUp + what.model.steps; step++) {
      watch.next_step();
      world.comm().barrier("step");
      staged.step();
      const stages::Timeline timeline = gather(mesh, *staged.pipe, watch);
      if (step < kWarmUp) continue;
      shares.push_back(timeline.bubble);
      idle.push_back(timeline.bubble * timeline.total * 1e3);
      simulated.push_back(
          stages::simulate_stages(staged.pipe->schedule(), stages::measured_costs_of_stages(timeline)).bubble);
    }
    const int held = watch.peak();
    world.comm().all_gather(&held, peak.data(), 1, DType::i32, "peak");
  }
  return {{"schedule", name},
          {"micro", micro},
          {"bubble", middle_step(shares)},
          {"idle_ms", middle_step(idle)},
          {"simulated", middle_step(simulated)},
          {"peak", peak}};
}

}  // namespace

int measure_pipeline(const std::string& out, const PipelineMeasure& what) {
  World world = join({.timeout_setting = ""});
  double ms = 0;
  if (what.schedules.front() == "none") {
    ms = ms_of_whole(world, what);
  } else {
    const Mesh mesh = world.mesh({{"pipeline", world.size()}});
    Staged staged(world, mesh, what, stages::parse_schedule(what.schedules.front()), what.micro.front(),
                  what.model.batch, nullptr);
    ms = ms_per_step(world, what.model.steps, [&] { staged.step(); });
  }
  if (world.first()) std::ofstream(out, std::ios::app) << fmt::format("{{\"ms_per_step\": {:.4f}}}\n", ms);
  return 0;
}

int measure_bubbles(const std::string& out, const PipelineMeasure& what) {
  World world = join({.timeout_setting = ""});
  for (const int micro : what.micro)
    for (const std::string& schedule : what.schedules) {
      const nlohmann::json line = bubble_of(world, what, schedule, micro);
      if (world.first()) std::ofstream(out, std::ios::app) << line.dump() << '\n';
    }
  return 0;
}

}  // namespace trireme::tools
