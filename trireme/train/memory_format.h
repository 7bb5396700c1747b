#pragma once
// Whether convolution weights are better stored channels-last: measured, not guessed, and remembered.
#include <string>

#include <trireme/cluster/world.h>
#include <trireme/models/model.h>

namespace trireme::train {

struct FormatChoice {
  bool channels_last = false;
  std::string reason;  // a sentence for the log
};

/// Times forward and backward of `net` in both formats on a batch, on all ranks at once, and decides for all; `net` is
/// as it was afterwards, but for what it has drawn of libtorch's random numbers. The choice is kept in the file `cache`
/// (if not empty) by (model, input, processor, libtorch): the next run takes the same one, which also keeps runs
/// bit-identical. Collective.
FormatChoice choose_memory_format(World& world, const models::Model& net, const torch::Tensor& x,
                                  const torch::Tensor& y, const std::string& model, const std::string& cache);

}  // namespace trireme::train
