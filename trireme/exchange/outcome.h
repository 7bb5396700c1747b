#pragma once
// What became of a step, as a value: of the one that began last. An exchange writes it while it goes through its verbs
// (exchange.h); each field says from which verb on it holds, until the next open().
#include <array>
#include <cstddef>
#include <span>

#include <trireme/exchange/balancer.h>

namespace trireme::exchange {

/// Numbers that travel with a step: its loss, whether a rank wants to stop, two signs (terms.h), whether one has heard
/// of another crew, which samples it had (Ledger), and how long it computes (Balancer).
using Told = std::array<double, 14>;

constexpr size_t kToldSamples = 9;  // their number, then the sum of their signs
constexpr size_t kToldStint = 11;
inline std::span<double, Balancer::kTold> told_of_stint(Told& told) {
  return std::span<double, Balancer::kTold>(told.data() + kToldStint, Balancer::kTold);
}

struct Outcome {
  /// All of its parameters are in place on this rank: land() has nothing to do.
  bool landed = true;
  /// After land(): false when the step had a gradient that was NaN or infinite, unless OnNan::ignore. In lockstep all
  /// ranks find the same. Parameters and state have nothing of it: with Options::clip or OnNan::skip they are as before
  /// the step, otherwise the blocks of space::kBlock elements that had it are, while others were updated.
  bool sound = true;
  /// After land(): something was updated before the norm was known (Options::ahead); and it was wrong, and taken back.
  bool went_ahead = false, taken_back = false;
  /// Without lockstep: the ranks have agreed to stop, and no step begins any more.
  bool stopped = false;
  /// After close(), with Traits::tells: the sums over all ranks of what they told, the same bits everywhere.
  Told told{};
};

/// A gradient that is not finite.
struct Flaw {
  size_t slot;
  bool own;  // of this rank; otherwise it was found in the sum over ranks, and whose it is was not kept
};

}  // namespace trireme::exchange
