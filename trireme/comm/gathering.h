#pragma once
// Sums over ranks, beside whatever else they do together.
//
// A layer may need numbers of all ranks in the middle of a backward pass, where buckets of gradients are under way: it
// cannot join the one sequence of rounds and collectives, because how far each rank is with those depends on time. But
// messages from rank to rank are apart from that sequence. So the ranks of a machine send theirs to the first of them,
// these send theirs to the first of all, and the result takes the same way back. Not every rank has samples in every
// step: those without take no part, and all know who they are.
#include <functional>
#include <span>
#include <string_view>
#include <vector>

#include <trireme/comm/communicator.h>

namespace trireme::comm {

/// Not thread-safe, like the group, which it does not own. Every call blocks until all whom it concerns have come, with
/// the group's deadline; ranks that came for something else, or with other counts, get a Mismatch.
class Gathering {
 public:
  /// Adds `other` to `into`. Calls are nested in the order of ranks, so all ranks get the same bits.
  using Merge = std::function<void(std::span<double> into, std::span<const double> other)>;

  /// `machine_of[r]` is the machine of rank r.
  Gathering(Communicator& group, std::vector<int> machine_of);

  /// Collective, of all ranks: who takes part from now on.
  void call(bool present);
  /// The ranks that do, in their order; all of them before the first call().
  const std::vector<int>& present() const { return present_; }
  std::vector<int> absent() const;

  /// Collective, of those present: `numbers` become what all of them give together.
  void merge(std::span<double> numbers, const Merge& merge, std::string_view name);

 private:
  void merge(const std::vector<int>& ranks, std::span<double> numbers, const Merge& merge, std::string_view name);

  Communicator& group_;
  std::vector<int> machine_of_;
  std::vector<int> everybody_, present_;
};

/// The merge that adds.
void add(std::span<double> into, std::span<const double> other);

}  // namespace trireme::comm
