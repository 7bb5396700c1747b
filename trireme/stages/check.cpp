#include <algorithm>
#include <optional>
#include <utility>

#include <trireme/base/error.h>
#include <trireme/stages/check.h>

namespace trireme::stages {
namespace {

/// Thrown inside this file only: what is wrong.
struct Fault {
  std::string text;
};

template <class... Args>
[[noreturn]] void fault(fmt::format_string<Args...> text, Args&&... args) {
  throw Fault{fmt::format(text, std::forward<Args>(args)...)};
}

/// Where each action stands in its row; -1: nowhere.
class Places {
 public:
  explicit Places(const Schedule& schedule)
      : schedule_(schedule), per_kind_(static_cast<size_t>(schedule.micro) * schedule.chunks) {
    table_.assign(schedule.stages, std::vector<int>(kKinds * per_kind_, -1));
    for (int stage = 0; stage < schedule.stages; stage++) enter(stage);
  }

  int of(int stage, const Action& a) const { return table_[stage][slot(a)]; }

 private:
  size_t slot(const Action& a) const {
    return static_cast<size_t>(a.kind) * per_kind_ + static_cast<size_t>(a.micro) * schedule_.chunks + a.chunk;
  }

  void enter(int stage) {
    const std::vector<Action>& row = schedule_.rows[stage];
    for (size_t i = 0; i < row.size(); i++) {
      const Action& a = row[i];
      if (static_cast<int>(a.kind) >= kKinds) fault("stage {}: there is no action {}", stage, static_cast<int>(a.kind));
      if (a.micro < 0 || a.micro >= schedule_.micro)
        fault("stage {}: {}: micro-batches are 0 to {}", stage, describe(a), schedule_.micro - 1);
      if (a.chunk < 0 || a.chunk >= schedule_.chunks)
        fault("stage {}: {}: chunks are 0 to {}", stage, describe(a), schedule_.chunks - 1);
      if (table_[stage][slot(a)] >= 0) fault("stage {}: {} stands there twice", stage, describe(a));
      table_[stage][slot(a)] = static_cast<int>(i);
    }
  }

  const Schedule& schedule_;
  size_t per_kind_;
  std::vector<std::vector<int>> table_;
};

/// What one (micro-batch, chunk) of a stage has to have, and in which order.
class OnePass {
 public:
  OnePass(const Schedule& schedule, const Places& places, int stage, int micro, int chunk)
      : schedule_(schedule), places_(places), stage_(stage), micro_(micro), chunk_(chunk) {}

  void check() const {
    demand(Kind::forward);
    const bool whole = has(Kind::backward), parts = has(Kind::backward_input) || has(Kind::backward_weight);
    if (whole && parts)
      fault("stage {}: micro-batch {}, chunk {} has a backward and a {} besides", stage_, micro_, chunk_,
            kind_name(has(Kind::backward_input) ? Kind::backward_input : Kind::backward_weight));
    if (parts) {
      demand(Kind::backward_input);
      demand(Kind::backward_weight);
      in_order(Kind::backward_input, Kind::backward_weight);
    } else {
      demand(Kind::backward);
    }
    const Kind back = parts ? Kind::backward_input : Kind::backward;
    in_order(Kind::forward, back);
    const bool alone = schedule_.stages == 1;
    const bool before = !alone && !is_first(stage_, chunk_), behind = !alone && !is_last(schedule_, stage_, chunk_);
    crossing(before, Kind::receive_activation, Kind::forward, Kind::receive_activation);
    crossing(behind, Kind::forward, Kind::send_activation, Kind::send_activation);
    crossing(behind, Kind::receive_gradient, back, Kind::receive_gradient);
    crossing(before, back, Kind::send_gradient, Kind::send_gradient);
    if (alone && chunk_ > 0) inside(back);
  }

 private:
  Action action(Kind kind) const { return {kind, micro_, chunk_}; }
  int place(Kind kind) const { return places_.of(stage_, action(kind)); }
  bool has(Kind kind) const { return place(kind) >= 0; }

  void demand(Kind kind) const {
    if (!has(kind)) fault("stage {}: there is no {}", stage_, describe(action(kind)));
  }

  void in_order(Kind first, Kind then) const {
    if (place(first) > place(then))
      fault("stage {}: {} comes before its {}", stage_, describe(action(then)), kind_name(first));
  }

  /// `transfer` is one of `first` and `then`.
  void crossing(bool wanted, Kind first, Kind then, Kind transfer) const {
    if (!wanted && has(transfer)) {
      fault("stage {}: {}: there is nobody to {}", stage_, describe(action(transfer)),
            is_send(transfer) ? "send it to" : "receive it from");
    }
    if (!wanted) return;
    demand(transfer);
    in_order(first, then);
  }

  /// With one stage, chunks hand over to each other in the row.
  void inside(Kind back) const {
    const Action before{Kind::forward, micro_, chunk_ - 1};
    if (places_.of(stage_, before) > place(Kind::forward))
      fault("stage {}: {} comes before that of chunk {}, whose output it needs", stage_,
            describe(action(Kind::forward)), chunk_ - 1);
    for (Kind kind : {Kind::backward, Kind::backward_input}) {
      const int other = places_.of(stage_, {kind, micro_, chunk_ - 1});
      if (other >= 0 && other < place(back))
        fault("stage {}: {} comes before that of chunk {}, whose gradient it needs", stage_,
              describe(Action{kind, micro_, chunk_ - 1}), chunk_);
    }
  }

  const Schedule& schedule_;
  const Places& places_;
  int stage_, micro_, chunk_;
};

/// The sends of a stage that go to one other stage have the order of the receives there. With two stages both
/// neighbours are the same one, but activations that go on and those that come round are apart by their direction.
void check_ways(const Schedule& schedule, const Places& places) {
  for (int stage = 0; stage < schedule.stages; stage++)
    for (Kind kind : {Kind::send_activation, Kind::send_gradient}) {
      std::optional<Action> last;
      int last_place = -1;
      for (const Action& a : schedule.rows[stage]) {
        if (a.kind != kind) continue;
        const auto [other, receive] = partner(schedule, stage, a);
        const int place = places.of(other, receive);
        if (place < last_place)
          fault(
              "stage {} sends the {} of micro-batch {}, chunk {} after that of micro-batch {}, chunk {}, but stage {} "
              "receives it before",
              stage, kind == Kind::send_activation ? "activation" : "gradient", a.micro, a.chunk, last->micro,
              last->chunk, other);
        last = a, last_place = place;
      }
    }
}

/// Every stage goes on as far as it can; a send and its receive are passed together.
class Rendezvous {
 public:
  explicit Rendezvous(const Schedule& schedule) : schedule_(schedule), next_(schedule.stages, 0) {}

  void run() {
    std::vector<int> stages;
    for (int s = schedule_.stages - 1; s >= 0; s--) stages.push_back(s);
    while (!stages.empty()) {
      const int s = stages.back();
      stages.pop_back();
      while (!at_end(s) && is_compute(at(s).kind)) next_[s]++;
      if (at_end(s)) continue;
      const auto [other, wanted] = partner(schedule_, s, at(s));
      if (at_end(other) || !(at(other) == wanted)) continue;  // the other one finds this stage here when it comes
      next_[s]++, next_[other]++;
      stages.push_back(other);
      stages.push_back(s);
    }
    for (int s = 0; s < schedule_.stages; s++)
      if (!at_end(s)) fault("{}", circle(s));
  }

 private:
  bool at_end(int stage) const { return next_[stage] == schedule_.rows[stage].size(); }
  const Action& at(int stage) const { return schedule_.rows[stage][next_[stage]]; }

  /// Who waits for whom, from a stage on until it closes.
  std::string circle(int stage) const {
    std::vector<bool> seen(schedule_.stages, false);
    while (!seen[stage]) {  // to a stage of the circle itself
      seen[stage] = true;
      stage = partner(schedule_, stage, at(stage)).stage;
    }
    std::string text = "a deadlock with sends that wait for their receives: ";
    const int first = stage;
    for (int told = 0; told == 0 || stage != first; told++) {
      const int other = partner(schedule_, stage, at(stage)).stage;
      if (told == kMostTold) return text + "; and so on";
      text += fmt::format("{}stage {} is at the {} and waits for stage {}", told == 0 ? "" : "; ", stage,
                          describe(at(stage)), other);
      stage = other;
    }
    return text;
  }

  static constexpr int kMostTold = 6;
  const Schedule& schedule_;
  std::vector<size_t> next_;
};

int peak_of(const std::vector<Action>& row) {
  int held = 0, most = 0;
  for (const Action& a : row) {
    if (a.kind == Kind::forward) most = std::max(most, ++held);
    if (a.kind == Kind::backward || a.kind == Kind::backward_weight) held--;
  }
  return most;
}

void prove(const Schedule& schedule) {
  try {
    check_sizes(schedule.stages, schedule.micro, schedule.chunks);
  } catch (const InvalidArgument& error) {
    fault("{}", error.what());
  }
  if (schedule.rows.size() != static_cast<size_t>(schedule.stages))
    fault("there are {} rows for {} stages", schedule.rows.size(), schedule.stages);
  const Places places(schedule);
  for (int stage = 0; stage < schedule.stages; stage++)
    for (int micro = 0; micro < schedule.micro; micro++)
      for (int chunk = 0; chunk < schedule.chunks; chunk++) OnePass(schedule, places, stage, micro, chunk).check();
  check_ways(schedule, places);
  Rendezvous(schedule).run();
}

}  // namespace

Verdict check(const Schedule& schedule) {
  try {
    prove(schedule);
  } catch (const Fault& found) {
    return {false, found.text, {}};
  }
  Verdict verdict{true, "", {}};
  for (const auto& row : schedule.rows) verdict.peak.push_back(peak_of(row));
  return verdict;
}

}  // namespace trireme::stages
