#pragma once
// What a run of a model changes besides its outputs, put back: random numbers and buffers. Not installed.
#include <torch/types.h>

#include <vector>

namespace trireme::layers {

/// Of libtorch's default generator, which belongs to the process.
torch::Tensor random_state();
void set_random_state(const torch::Tensor& state);

/// While one lives, buffers may change; afterwards they are as before. A graph that has seen them does not mind.
class SameBuffers {
 public:
  explicit SameBuffers(std::vector<torch::Tensor> buffers);
  ~SameBuffers();
  SameBuffers(const SameBuffers&) = delete;
  SameBuffers& operator=(const SameBuffers&) = delete;

 private:
  const std::vector<torch::Tensor> buffers_;
  std::vector<torch::Tensor> before_;
};

}  // namespace trireme::layers
