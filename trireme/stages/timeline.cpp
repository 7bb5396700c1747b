#include <algorithm>
#include <array>
#include <cmath>

#include <trireme/base/error.h>
#include <trireme/stages/stage_costs.h>
#include <trireme/stages/timeline.h>

namespace trireme::stages {
namespace {

double cost_of(const Costs& costs, Kind kind, int chunks) {
  switch (kind) {
    case Kind::forward:
      return costs.forward / chunks;
    case Kind::backward:
      return costs.backward / chunks;
    case Kind::backward_input:
      return costs.input / chunks;
    case Kind::backward_weight:
      return costs.weight / chunks;
    default:
      return 0;
  }
}

/// So that a schedule that nobody has checked does no harm.
void require_ranges(const Schedule& schedule) {
  check_sizes(schedule.stages, schedule.micro, schedule.chunks);
  bool within = schedule.rows.size() == static_cast<size_t>(schedule.stages);
  for (size_t stage = 0; within && stage < schedule.rows.size(); stage++)
    for (const Action& a : schedule.rows[stage]) {
      within = within && a.micro >= 0 && a.micro < schedule.micro && a.chunk >= 0 && a.chunk < schedule.chunks;
      if (!within || is_compute(a.kind)) continue;
      const auto [other, action] = partner(schedule, static_cast<int>(stage), a);
      within = other >= 0 && action.chunk >= 0 && action.chunk < schedule.chunks;
    }
  if (!within) fail<InvalidArgument>("the schedule does not work out: check() says why");
}

/// Every stage goes on as far as it can.
class Playing {
 public:
  Playing(Schedule schedule, const std::vector<Costs>& costs)
      : schedule_(std::move(schedule)),
        costs_(costs),
        next_(schedule_.stages, 0),
        now_(schedule_.stages, 0),
        arrivals_(static_cast<size_t>(2) * schedule_.stages * schedule_.micro * schedule_.chunks, kNotSent) {}

  std::vector<Span> spans() {
    std::vector<int> stages;
    for (int s = schedule_.stages - 1; s >= 0; s--) stages.push_back(s);
    while (!stages.empty()) {
      const int s = stages.back();
      stages.pop_back();
      while (next_[s] < schedule_.rows[s].size()) {
        const Action& action = schedule_.rows[s][next_[s]];
        const bool done = is_compute(action.kind) ? compute(s, action)
                          : costs_[s].rendezvous  ? meet(s, action)
                          : is_send(action.kind)  ? send(s, action)
                                                  : receive(s, action);
        if (!done) break;
        if (!is_compute(action.kind)) stages.push_back(partner(schedule_, s, action).stage);
      }
    }
    for (int s = 0; s < schedule_.stages; s++)
      if (next_[s] < schedule_.rows[s].size())
        fail<InvalidArgument>("the schedule comes to a stop: stage {} waits for ever at the {}", s,
                              describe(schedule_.rows[s][next_[s]]));
    return std::move(spans_);
  }

 private:
  void pass(int stage, const Action& action, double until) {
    spans_.push_back({stage, action, now_[stage], until});
    now_[stage] = until;
    next_[stage]++;
  }

  bool compute(int stage, const Action& action) {
    pass(stage, action, now_[stage] + cost_of(costs_[stage], action.kind, schedule_.chunks));
    return true;
  }

  bool send(int stage, const Action& action) {
    const auto [other, receive] = partner(schedule_, stage, action);
    arrival(other, receive) = now_[stage] + costs_[stage].transfer;
    pass(stage, action, now_[stage]);
    return true;
  }

  bool receive(int stage, const Action& action) {
    const double there = arrival(stage, action);
    if (there == kNotSent) return false;
    pass(stage, action, std::max(now_[stage], there));
    return true;
  }

  double& arrival(int stage, const Action& receive) {
    const size_t gradient = receive.kind == Kind::receive_gradient ? 1 : 0;
    return arrivals_[((stage * 2 + gradient) * schedule_.micro + receive.micro) * schedule_.chunks + receive.chunk];
  }

  /// Both sides pass when the later one has come.
  bool meet(int stage, const Action& action) {
    const auto [other, wanted] = partner(schedule_, stage, action);
    if (next_[other] == schedule_.rows[other].size() || !(schedule_.rows[other][next_[other]] == wanted)) return false;
    const double end = std::max(now_[stage], now_[other]) + costs_[is_send(action.kind) ? stage : other].transfer;
    pass(other, wanted, end);
    pass(stage, action, end);
    return true;
  }

  static constexpr double kNotSent = -1;
  const Schedule schedule_;
  const std::vector<Costs>& costs_;  // by stage
  std::vector<size_t> next_;
  std::vector<double> now_;
  std::vector<double> arrivals_;  // of what is on its way, by receive
  std::vector<Span> spans_;
};

/// Total and bubble of the spans that are there, and times from 0.
Timeline timeline_of(const Schedule& schedule, std::vector<Span> spans) {
  Timeline out{schedule.name, schedule.stages, schedule.micro, schedule.chunks, std::move(spans), 0, 0};
  double begin = INFINITY, end = -INFINITY, busy = 0;
  for (const Span& span : out.spans)
    if (is_compute(span.action.kind)) {
      begin = std::min(begin, span.begin), end = std::max(end, span.end);
      busy += span.end - span.begin;
    }
  if (begin > end) return out;
  for (Span& span : out.spans) span.begin -= begin, span.end -= begin;
  std::stable_sort(out.spans.begin(), out.spans.end(), [](const Span& a, const Span& b) { return a.stage < b.stage; });
  out.total = end - begin;
  if (out.total > 0) out.bubble = 1 - busy / (out.total * out.stages);
  return out;
}

}  // namespace

Timeline simulate(const Schedule& schedule, const Costs& costs) {
  require_ranges(schedule);
  return simulate_stages(schedule, std::vector<Costs>(schedule.rows.size(), costs));
}

Timeline simulate_stages(const Schedule& schedule, const std::vector<Costs>& of_stage) {
  require_ranges(schedule);
  if (of_stage.size() != schedule.rows.size())
    fail<InvalidArgument>("{} stages have costs, and the schedule has {}", of_stage.size(), schedule.rows.size());
  const bool rendezvous = of_stage.front().rendezvous;
  for (const Costs& costs : of_stage)
    if (costs.rendezvous != rendezvous)
      fail<InvalidArgument>("some stages send with rendezvous and others do not: set it in the costs of all or none");
  return timeline_of(schedule, Playing(rendezvous ? schedule : early_sends(schedule), of_stage).spans());
}

Timeline recorded(const Schedule& schedule, std::vector<Span> spans) { return timeline_of(schedule, std::move(spans)); }

Costs measured_costs(const Timeline& timeline, const Costs& otherwise) {
  std::array<std::vector<double>, kKinds> taken;
  for (const Span& span : timeline.spans)
    taken[static_cast<size_t>(span.action.kind)].push_back((span.end - span.begin) * timeline.chunks);
  const auto median = [&](Kind kind, double none) {
    std::vector<double>& values = taken[static_cast<size_t>(kind)];
    if (values.empty()) return none;
    std::nth_element(values.begin(), values.begin() + values.size() / 2, values.end());
    return values[values.size() / 2];
  };
  Costs costs = otherwise;
  costs.forward = median(Kind::forward, otherwise.forward);
  costs.backward = median(Kind::backward, otherwise.backward);
  costs.input = median(Kind::backward_input, otherwise.input);
  costs.weight = median(Kind::backward_weight, otherwise.weight);
  return costs;
}

std::vector<Costs> measured_costs_of_stages(const Timeline& timeline, const Costs& otherwise) {
  std::vector<Costs> costs;
  for (int stage = 0; stage < timeline.stages; stage++) {
    Timeline alone;
    alone.chunks = timeline.chunks;
    for (const Span& span : timeline.spans)
      if (span.stage == stage) alone.spans.push_back(span);
    costs.push_back(measured_costs(alone, otherwise));
  }
  return costs;
}

std::optional<double> bubble_formula(const ScheduleSpec& spec, int stages, int micro, const Costs& costs) {
  using Name = ScheduleSpec::Name;
  if (spec.name == Name::file || costs.transfer != 0 || costs.rendezvous) return {};
  if (spec.name == Name::zero_bubble) {
    if (costs.forward != costs.input || costs.forward != costs.weight) return {};
    const double idle = std::max(stages - 1, 2 * stages - 1 - micro);
    return idle / (3.0 * micro + idle);
  }
  const double idle = stages - 1 + (spec.chunks - 1.0) * std::max(0, stages - micro);
  return idle / (static_cast<double>(spec.chunks) * micro + idle);
}

std::string few_micro_batches(const Schedule& schedule, const Costs& costs) {
  const int p = schedule.stages, enough = 4 * p;
  if (schedule.micro >= p) return "";
  return fmt::format(
      "there are fewer micro-batches ({}) than stages ({}): the stages wait for {:.0f} % of the time. Four times as "
      "many "
      "micro-batches as stages ({}) leave 1f1b {:.0f} %",
      schedule.micro, p, 100 * simulate(schedule, costs).bubble, enough, 100.0 * (p - 1) / (enough + p - 1));
}

}  // namespace trireme::stages
