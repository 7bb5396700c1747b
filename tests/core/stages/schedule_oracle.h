#pragma once
// A second opinion on schedules, for tests: it knows nothing of rows and places, only of positions in the model and of
// values that exist or do not. Slow, and short enough to be believed.
#include <map>
#include <set>
#include <tuple>
#include <utility>

#include <trireme/stages/schedule.h>

namespace trireme::stages::test {

/// Carries the rows out with rendezvous sends: each stage its next action, when the values it needs are there.
class Oracle {
 public:
  explicit Oracle(const Schedule& schedule)
      : s_(schedule), last_(schedule.stages * schedule.chunks - 1), next_(schedule.rows.size(), 0) {}

  bool valid() {
    if (!within_ranges()) return false;
    for (bool moved = true; moved;) {
      moved = false;
      for (int stage = 0; stage < s_.stages; stage++) moved = step(stage) || moved;
    }
    for (int stage = 0; stage < s_.stages; stage++)
      if (next_[stage] < s_.rows[stage].size()) return false;
    return complete();
  }

 private:
  // A value: what it is, of which micro-batch, and the position that made it or has received it.
  enum Value { output, input, gradient_out, gradient_in, weights };
  using Key = std::tuple<Value, int, int>;

  bool within_ranges() const {
    for (const auto& row : s_.rows)
      for (const Action& a : row)
        if (static_cast<int>(a.kind) >= kKinds || a.micro < 0 || a.micro >= s_.micro || a.chunk < 0 ||
            a.chunk >= s_.chunks)
          return false;
    return static_cast<int>(s_.rows.size()) == s_.stages;
  }

  bool there(Value value, int micro, int position) const { return values_.count({value, micro, position}) > 0; }
  bool make(Value value, int micro, int position) { return values_.insert({value, micro, position}).second; }

  bool step(int stage) {
    if (next_[stage] == s_.rows[stage].size()) return false;
    const Action a = s_.rows[stage][next_[stage]];
    const int q = a.chunk * s_.stages + stage;
    const bool alone = s_.stages == 1;
    switch (a.kind) {
      case Kind::forward:
        if (q > 0 && !there(alone ? output : input, a.micro, alone ? q - 1 : q)) return false;
        if (!make(output, a.micro, q)) return false;
        break;
      case Kind::backward:
      case Kind::backward_input:
        if (!there(output, a.micro, q)) return false;
        if (q < last_ && !there(alone ? gradient_out : gradient_in, a.micro, alone ? q + 1 : q)) return false;
        if (!make(gradient_out, a.micro, q)) return false;
        if (a.kind == Kind::backward) make(weights, a.micro, q);
        break;
      case Kind::backward_weight:
        if (!there(gradient_out, a.micro, q) || !make(weights, a.micro, q)) return false;
        break;
      default:
        return rendezvous(stage, a, q);
    }
    next_[stage]++;
    return true;
  }

  /// Only from the sender's side.
  bool rendezvous(int stage, const Action& a, int q) {
    const bool activation = a.kind == Kind::send_activation;
    if (!activation && a.kind != Kind::send_gradient) return false;
    const int to = activation ? q + 1 : q - 1;
    if (to < 0 || to > last_ || s_.stages == 1) return false;
    const int other = to % s_.stages;
    if (next_[other] == s_.rows[other].size()) return false;
    const Action b = s_.rows[other][next_[other]];
    const Kind wanted = activation ? Kind::receive_activation : Kind::receive_gradient;
    if (b.kind != wanted || b.micro != a.micro || b.chunk * s_.stages + other != to) return false;
    if (!there(activation ? output : gradient_out, a.micro, q)) return false;
    if (!make(activation ? input : gradient_in, a.micro, to)) return false;
    next_[stage]++, next_[other]++;
    return true;
  }

  /// All values were made, and each computation found its own to make: none was done twice.
  bool complete() const {
    for (int micro = 0; micro < s_.micro; micro++)
      for (int q = 0; q <= last_; q++) {
        if (!there(output, micro, q) || !there(gradient_out, micro, q) || !there(weights, micro, q)) return false;
        if (s_.stages > 1 && q > 0 && !there(input, micro, q)) return false;
        if (s_.stages > 1 && q < last_ && !there(gradient_in, micro, q)) return false;
      }
    return true;
  }

  const Schedule& s_;
  const int last_;
  std::vector<size_t> next_;
  std::set<Key> values_;
};

}  // namespace trireme::stages::test
