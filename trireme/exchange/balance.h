#pragma once
// How the samples of a step are divided among ranks that are not equally fast, and who makes the others wait. Pure
// functions of what was measured, without a clock: the same numbers give the same answer on every rank.
//
// Steps that are measured together are a *stint*. All steps of a stint are divided alike.
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace trireme::exchange {

/// Samples of a full step, by rank. They add up to the batch.
using SampleShares = std::vector<size_t>;

/// What a rank did in a stint, in seconds per step.
struct Effort {
  double computing = 0;   // forward and backward passes, without what it waited for
  double exchanging = 0;  // from the end of its last pass to that of the update: who is last does not wait in it
};

struct Stint {
  int64_t steps = 0;
  std::vector<Effort> ranks;
};

/// As without balancing: they differ by at most one.
SampleShares even_shares(size_t batch, int ranks);
/// With which the last rank is done soonest. Everybody has at least `least` samples, and there are enough for that.
SampleShares quickest_shares(std::span<const double> seconds_per_sample, size_t batch, size_t least = 1);

/// What is older says nothing any more.
constexpr size_t kRemembered = 4;  // stints

struct Division {
  SampleShares shares;
  bool changed = false;
  std::string reason;  // a sentence, but for its full stop
};

/// The next division, from the stints since the last change (oldest first) and the shares that they had. What is
/// measured is noisy, and a change costs something: a division stays until several stints agree that another one is
/// better, and by how much. An even one is as good as one that is hardly better.
Division divide(std::span<const Stint> stints, const SampleShares& before, size_t least = 1);
/// The first division of a crew of which some are known from before; 0: nothing is known of a rank, which is taken for
/// one like the others.
Division divide_anew(std::span<const double> seconds_per_sample, size_t batch, size_t least = 1);

/// A rank that the others wait for.
struct Straggler {
  int rank = -1;
  int64_t steps = 0;  // measured
  double waited = 0;  // seconds per step, the mean over the others
  double step = 0;    // seconds per step
};
/// There is one if the same rank computes longest in all of at least two stints, the others wait for a tenth of the
/// time or more, and at least 80 % of that would be gone without this rank. Where several are slow, none is named: who
/// waits for one of them waits for the next one then.
std::optional<Straggler> straggler_of(std::span<const Stint> stints);

/// "43, 21"; of many ranks the smallest and the largest.
std::string describe(const SampleShares& shares);

/// What is known of a crew's balance.
struct Balance {
  SampleShares shares{};  // empty: even ones
  std::string reason = "nothing is measured yet";
  int64_t changes = 0;                   // of the shares, by speed
  int64_t stragglers = 0;                // that were found; one is counted again when another one was found meanwhile
  std::optional<Straggler> straggler{};  // of this crew, found last
  Stint last{};                          // that was measured
  std::vector<std::string> names{};      // of ranks: "rank 2 (host b, process 4242)"
};

}  // namespace trireme::exchange
