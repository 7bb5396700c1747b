#pragma once
// When a worker's gradient counts: decisions as pure functions of what is known, each with its reason as a sentence. No
// clock, no I/O, no lock.
#include <cstdint>
#include <limits>
#include <span>
#include <string>
#include <vector>

namespace trireme::ps {

/// When a pushed gradient is applied.
enum class Order : uint8_t {
  together,    // when those of all workers are there: one update with their sum
  on_arrival,  // at once
  rotating     // worker 0, 1, …, 0, 1, …: whoever is early waits for its turn
};

/// What a stale gradient is worth.
enum class Stale : uint8_t {
  full,        // as much as a fresh one
  inverse,     // the rate divided by 1 + staleness
  compensated  // g + λ g² (θ − θ at the pull): the gradient that a fresh pull would have given, to first order
               // (DC-ASGD)
};

struct Rules {
  int workers = 1;
  Order order = Order::together;
  int64_t bound = -1;  // steps that a worker may be ahead of the slowest; -1: any
  Stale stale = Stale::full;
  double lambda = 0.04;  // of Stale::compensated
  int step_updates = 1;  // updates that make up a step, as each counts its share of one. With several every worker has
                         // an optimizer state of its own, so that momentum and the like last as many steps as ever, and
                         // Stale::inverse weighs staleness in steps
};

enum class Verdict : uint8_t { apply, hold, drop };

/// Numbers now, a sentence when somebody asks: decisions are made for every message.
struct Decision {
  enum class Why : uint8_t {
    arrived,
    complete,
    in_turn,
    unbounded,
    within,
    missing,
    not_in_turn,
    delayed,
    ahead,
    repeated,
    locked,
    free
  };
  Verdict verdict = Verdict::apply;
  Why why = Why::arrived;
  int other = -1;      // the worker that the decision is about, besides the one that asks
  int64_t steps = 0;   // ahead of the slowest
  double seconds = 0;  // of a delay that is left

  std::string reason() const;
};

constexpr int64_t kGone =
    std::numeric_limits<int64_t>::max();  // the clock of a worker that has left, or rests between epochs

struct PushFacts {
  int worker = 0;
  bool repeated = false;  // a request with this id was applied before
  double delay = 0;       // seconds for which this worker's push is still to be delayed
  int missing = -1;       // the first worker whose gradient is not there; -1: none
  int turn = 0;           // whose turn it is
};

Decision judge_push(const Rules& rules, const PushFacts& facts);

/// May `worker` begin `step`? `clocks` are the steps that the workers are at; its own is `step` by then.
Decision judge_begin(const Rules& rules, std::span<const int64_t> clocks, int worker, int64_t step);

/// May `worker` have the update lock? `holder` is who has it, or -1.
Decision judge_lock(int holder, int worker);

/// The learning rate for a gradient that is `staleness` updates old.
double rate_for(const Rules& rules, double lr, uint64_t staleness);

std::string name_of(Stale stale);
/// Throws InvalidArgument with the nearest valid name.
Stale stale_named(const std::string& name);
std::vector<std::string> stale_names();

}  // namespace trireme::ps
