#pragma once
// Matrix products in 16 bits, everything else in 32.
//
// With Precision::bf16 the loss function runs under libtorch's autocast for the CPU: linear layers, matrix products and
// convolutions round their inputs to bf16, multiply and add up inside in f32, and give bf16. Parameters and optimizer
// state stay f32, gradients arrive as f32, and so do sums over ranks: steps smaller than bf16 can tell add up. Losses
// and norms are computed in f32.
#include <vector>

#include <trireme/parallel/options.h>
#include <trireme/parallel/tensors.h>

namespace trireme {

/// While one lives, operators of this thread compute as said. Costs nothing with f32.
class InPrecision {
 public:
  explicit InPrecision(Precision precision);
  ~InPrecision();
  InPrecision(const InPrecision&) = delete;
  InPrecision& operator=(const InPrecision&) = delete;

 private:
  bool changes_, before_;
};

/// Throws InvalidArgument for a model that has no use for it: parameters of another type, or no matrix among them.
void check_precision(Precision precision, const std::vector<Named>& parameters);

}  // namespace trireme
