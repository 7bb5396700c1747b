#pragma once
// Whether convolution weights are better stored channels-last: measured, not guessed, and remembered.
#include <torch/nn/modules/container/sequential.h>

#include <functional>
#include <string>

#include <trireme/cluster/world.h>

namespace trireme::train {

struct FormatChoice {
  bool channels_last = false;
  std::string reason;  // a sentence for the log
};

/// Times forward and backward of a copy of `net` in both formats on `x`, on all ranks at once, and decides for all. The
/// choice is kept in the file `cache` (if not empty) by (model, input, processor, libtorch): the next run takes the
/// same one, which also keeps runs bit-identical. Collective.
FormatChoice choose_memory_format(World& world, const torch::nn::Sequential& net, const torch::Tensor& x,
                                  const std::function<torch::Tensor(const torch::Tensor&)>& loss_of_output,
                                  const std::string& model, const std::string& cache);

}  // namespace trireme::train
