#pragma once
// A linear layer for weights that cross a wire.
#include <torch/nn/modules/linear.h>

namespace trireme {

/// torch::nn::Linear, up to rounding. Where gradients cross a wire, a large layer does two things in another order:
/// - libtorch computes the gradient of a layer's input, then that of its weight, and hands both over together. But
/// nobody outside this process waits for the
///   input's, and everybody for the weight's: it is computed first, and departs while the other is computed.
/// - libtorch needs the whole weight to begin with. Here the output is computed in blocks, and each waits for its own
/// rows alone (arrivals.h).
class LargeLinearImpl : public torch::nn::LinearImpl {
 public:
  using torch::nn::LinearImpl::LinearImpl;
  static constexpr int64_t kLeast = 1 << 20;  // elements of a weight for which two more nodes in the graph pay
  static constexpr int64_t kBlock = 1 << 19;  // elements of the weight's rows that are used together

  torch::Tensor forward(const torch::Tensor& input);
};
TORCH_MODULE(LargeLinear);

/// While one lives, large layers of this thread build such graphs. A weight is then used once more after its gradient
/// was handed over.
class WeightsFirst {
 public:
  explicit WeightsFirst(bool on);
  ~WeightsFirst();
  WeightsFirst(const WeightsFirst&) = delete;
  WeightsFirst& operator=(const WeightsFirst&) = delete;

 private:
  bool before_;
};

}  // namespace trireme
