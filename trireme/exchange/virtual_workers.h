#pragma once
// The pieces of a step, and who computes them: with Options::virtual_workers. Their gradients are summed in one order
// (tree.h), whoever computes them, so that the bits do not depend on the ranks. A rank goes through its run of pieces
// in their order; the gradient of each goes to the seat that turn_of() says, and by ready() of a bucket the seats have
// the sums of the run's roots.
#include <cstddef>
#include <vector>

#include <trireme/exchange/tree.h>

namespace trireme::exchange {

/// One thread, that which trains.
class VirtualWorkers {
 public:
  /// By rank, the pieces of a step that it computes.
  const std::vector<Pieces>& runs() const { return runs_; }
  /// Between steps, on all ranks alike: another division, for as many ranks. Throws InvalidArgument when it is none.
  virtual void divide(const std::vector<Pieces>& runs) = 0;
  /// The loss of one of this rank's pieces, times its weight, before the last bucket's ready(): Outcome::told[0] is the
  /// sum over all pieces, in the tree.
  void tell(int piece, double loss) { losses_[static_cast<size_t>(piece)] = loss; }

 protected:
  ~VirtualWorkers() = default;

  std::vector<Pieces> runs_;    // by rank of the group
  std::vector<double> losses_;  // by piece: this rank's
};

}  // namespace trireme::exchange
