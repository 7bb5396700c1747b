#pragma once
// A linear layer whose weight gradient comes first.
#include <torch/nn/modules/linear.h>

namespace trireme {

/// torch::nn::Linear, the same bits. libtorch computes the gradient of a layer's input, then that of its weight, and hands both over together. But nobody
/// outside this process waits for the input's, and everybody for the weight's: where gradients cross a wire, a large layer computes that first, and it departs
/// while the other is computed.
class LargeLinearImpl : public torch::nn::LinearImpl {
 public:
  using torch::nn::LinearImpl::LinearImpl;
  static constexpr int64_t kLeast = 1 << 20;  // elements of a weight for which two more nodes in the graph pay

  torch::Tensor forward(const torch::Tensor& input);
};
TORCH_MODULE(LargeLinear);

/// While one lives, large layers of this thread build such graphs. A weight is then used once more after its gradient was handed over.
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
