#pragma once
// Dropout that does not depend on how a tensor is divided.
#include <trireme/layers/tensor_group.h>

namespace trireme::layers {

/// Sets elements to zero with probability `p`, and makes up for it by scaling the others, as torch::dropout does; with
/// p = 0 or outside of training, the input, and nothing is drawn. Where the input is a rank's part of a tensor cut
/// along `dim`, the numbers for all of it are drawn and this rank's are used: ranks must have the same random state,
/// and the result is that of a rank alone.
torch::Tensor dropout(const torch::Tensor& input, double p, bool training, const TensorGroup& divided = {},
                      int64_t dim = 0);

}  // namespace trireme::layers
