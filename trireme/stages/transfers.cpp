#include <algorithm>
#include <tuple>

#include <trireme/base/error.h>
#include <trireme/stages/transfers.h>

namespace trireme::stages {
namespace {

/// When outputs of positions are there: an activation, or a gradient of what came in.
class Outputs {
 public:
  explicit Outputs(const Schedule& schedule)
      : micro_(schedule.micro),
        last_(schedule.stages * schedule.chunks - 1),
        times_(2 * (last_ + 1) * micro_, kNever) {}

  static constexpr int64_t kNever = -1;

  int64_t& of(bool gradient, int position, int micro) {
    return times_[(static_cast<size_t>(position) * 2 + gradient) * micro_ + micro];
  }

  /// Of what the computation at this position needs from its neighbour; 0 if it needs nothing.
  int64_t needed(Kind kind, int position, int micro) {
    if (kind == Kind::forward) return position == 0 ? 0 : of(false, position - 1, micro);
    if (kind == Kind::backward_weight || position == last_) return 0;
    return of(true, position + 1, micro);
  }

 private:
  size_t micro_;
  int last_;
  std::vector<int64_t> times_;
};

int64_t planned_cost(Kind kind) { return kind == Kind::backward ? 2 : 1; }

/// The key by which rows are sorted: time, computations first, then a number that is the same on both sides, and of one
/// transfer only: a position receives one at a time.
using Turn = std::tuple<int64_t, bool, int64_t>;
struct Placed {
  Turn turn;
  Action action;
};

class Placing {
 public:
  explicit Placing(const Schedule& schedule) : in_(schedule), outputs_(schedule), rows_(schedule.stages) {}

  Schedule result() {
    run();
    Schedule out = in_;
    for (int s = 0; s < in_.stages; s++) {
      std::stable_sort(rows_[s].begin(), rows_[s].end(),
                       [](const Placed& a, const Placed& b) { return a.turn < b.turn; });
      out.rows[s].clear();
      for (const Placed& placed : rows_[s]) out.rows[s].push_back(placed.action);
    }
    return out;
  }

 private:
  void run() {
    std::vector<size_t> next(in_.stages, 0);
    std::vector<int64_t> now(in_.stages, 0);
    std::vector<int> waiting;
    for (int s = in_.stages - 1; s >= 0; s--) waiting.push_back(s);
    while (!waiting.empty()) {
      const int s = waiting.back();
      waiting.pop_back();
      bool moved = false;
      for (; next[s] < in_.rows[s].size() && step(s, in_.rows[s][next[s]], now[s]); next[s]++) moved = true;
      if (!moved || in_.stages == 1) continue;
      waiting.push_back((s + 1) % in_.stages);  // what they wait for may be there now
      waiting.push_back((s + in_.stages - 1) % in_.stages);
    }
    for (int s = 0; s < in_.stages; s++)
      if (next[s] < in_.rows[s].size())
        fail<InvalidArgument>(
            "stage {} waits for ever before the {}: what it needs comes later in a row that waits, too", s,
            describe(in_.rows[s][next[s]]));
  }

  /// False if what the action needs is not there yet.
  bool step(int stage, const Action& action, int64_t& now) {
    const int position = action.chunk * in_.stages + stage;
    const int64_t there = outputs_.needed(action.kind, position, action.micro);
    if (there == Outputs::kNever) return false;
    const bool gradient = action.kind != Kind::forward;
    const bool comes = action.kind != Kind::backward_weight &&
                       !(gradient ? is_last(in_, stage, action.chunk) : is_first(stage, action.chunk));
    if (comes && in_.stages > 1)
      transfer(stage, {receive_kind(gradient), action.micro, action.chunk}, std::max(now, there));
    now = std::max(now, there) + planned_cost(action.kind);
    rows_[stage].push_back({{now, false, 0}, action});
    if (action.kind != Kind::backward_weight) outputs_.of(gradient, position, action.micro) = now;
    return true;
  }

  static Kind receive_kind(bool gradient) { return gradient ? Kind::receive_gradient : Kind::receive_activation; }

  /// At equal times activations go first, as they tend to have been there longer; and of a kind those that are further
  /// on their way, so that a stage sends before it receives.
  void transfer(int stage, const Action& receive, int64_t time) {
    const auto [sender, send] = partner(in_, stage, receive);
    const bool gradient = receive.kind == Kind::receive_gradient;
    const int64_t positions = in_.stages * in_.chunks, position = receive.chunk * in_.stages + stage;
    const Turn turn{time, true, gradient ? positions + position : positions - position};
    rows_[stage].push_back({turn, receive});
    rows_[sender].push_back({turn, send});
  }

  const Schedule& in_;
  Outputs outputs_;
  std::vector<std::vector<Placed>> rows_;
};

}  // namespace

Schedule with_transfers(const Schedule& schedule) { return Placing(schedule).result(); }

}  // namespace trireme::stages
