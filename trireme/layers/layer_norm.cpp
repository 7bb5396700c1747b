#include <trireme/layers/collectives.h>
#include <trireme/layers/layer_norm.h>

namespace trireme::layers {

LayerNormImpl::LayerNormImpl(int64_t width, const TensorGroup& group, bool sequence)
    : torch::nn::Module("LayerNorm"), group_(group), sequence_(sequence) {
  weight = register_parameter("weight", torch::ones({width}));
  bias = register_parameter("bias", torch::zeros({width}));
}

torch::Tensor LayerNormImpl::forward(const torch::Tensor& input) {
  return torch::layer_norm(input, {weight.size(0)}, used_on_part(weight, group_, sequence_),
                           used_on_part(bias, group_, sequence_));
}

}  // namespace trireme::layers
