#pragma once
// torch::nn::LayerNorm over the last dim, for activations that may be split among tensor ranks along time.
#include <torch/nn/module.h>
#include <torch/nn/pimpl.h>

#include <trireme/layers/tensor_group.h>

namespace trireme::layers {

/// Parameters are whole on every rank. With `sequence` each rank normalises its part of the sequence, and the gradients
/// of the parameters are summed over ranks.
class LayerNormImpl : public torch::nn::Module {
 public:
  explicit LayerNormImpl(int64_t width, const TensorGroup& group = {}, bool sequence = false);
  torch::Tensor forward(const torch::Tensor& input);

  torch::Tensor weight, bias;

 private:
  TensorGroup group_;
  bool sequence_;
};
TORCH_MODULE(LayerNorm);

}  // namespace trireme::layers
