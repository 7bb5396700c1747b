#include <trireme/base/error.h>
#include <trireme/layers/dropout.h>

namespace trireme::layers {

torch::Tensor dropout(const torch::Tensor& input, double p, bool training, const TensorGroup& divided, int64_t dim) {
  if (p < 0 || p >= 1) fail<InvalidArgument>("dropout {}: 0 or more, and less than 1", p);
  if (p == 0 || !training) return input;
  std::vector<int64_t> sizes = input.sizes().vec();
  sizes[static_cast<size_t>(dim)] *= divided.size();
  const torch::Tensor whole = torch::empty(sizes, input.options()).bernoulli_(1 - p).div_(1 - p);
  return input * divided.part_of(whole, dim);
}

}  // namespace trireme::layers
