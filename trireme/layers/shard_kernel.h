#pragma once
// Kernels in front of libtorch's operators that know divided weights: see shard.h.
//
// torch::nn::Linear calls aten::addmm or aten::matmul with its weight transposed, torch::linear calls aten::linear,
// torch::nn::Embedding aten::embedding. Each has a kernel for autograd, one behind it for inference mode, where
// autograd is left out, and one in front of it for autocast. What is no divided weight goes on to libtorch's own
// kernel.
#include <torch/types.h>

#include <trireme/layers/tensor_group.h>

namespace trireme::layers {

/// What is done with a divided weight.
struct WeightCut {
  TensorGroup group;
  int dim = 0;            // of the weight. 0: outputs of a linear layer, or a vocabulary; 1: inputs
  bool gathered = false;  // outputs of a linear layer are
};

/// While one lives, the operators know this weight. The kernels are put in front when the first is made, and stay.
class KnownWeight {
 public:
  KnownWeight(const torch::Tensor& weight, const WeightCut& cut);
  ~KnownWeight();
  KnownWeight(const KnownWeight&) = delete;
  KnownWeight& operator=(const KnownWeight&) = delete;

 private:
  torch::Tensor weight_;  // kept, so that no other tensor gets its address
};

}  // namespace trireme::layers
