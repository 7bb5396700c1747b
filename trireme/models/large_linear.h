#pragma once
// A linear layer whose weight gradient comes first.
#include <torch/nn/modules/linear.h>

namespace trireme::models {

/// torch::nn::Linear, the same bits. libtorch computes the gradient of a layer's input, then that of its weight, and hands both over together. But nobody
/// waits for the input's outside this process, and everybody for the weight's: a large layer computes that first, and its buckets depart while the other
/// is computed. A small layer, or one whose input needs no gradient, is left to libtorch.
class LargeLinearImpl : public torch::nn::LinearImpl {
 public:
  using torch::nn::LinearImpl::LinearImpl;
  static constexpr int64_t kLeast = 1 << 20;  // elements of a weight for which two more nodes in the graph pay

  torch::Tensor forward(const torch::Tensor& input);
};
TORCH_MODULE(LargeLinear);

}  // namespace trireme::models
