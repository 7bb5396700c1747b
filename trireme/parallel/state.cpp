#include <torch/utils.h>

#include <trireme/parallel/state.h>

namespace trireme {

BufferState::BufferState(Named buffers) {
  const torch::NoGradGuard no_grad;
  for (auto& [name, tensor] : buffers) buffers_.push_back({"buffers/" + name, tensor, tensor.contiguous()});
}

std::vector<state::Part> BufferState::parts() const {
  std::vector<state::Part> parts;
  for (const Buffer& buffer : buffers_)
    parts.push_back({buffer.name,
                     {0, buffer.rows.nbytes()},
                     {static_cast<std::byte*>(buffer.rows.data_ptr()), buffer.rows.nbytes()}});
  return parts;
}

void BufferState::store() const {
  const torch::NoGradGuard no_grad;
  for (const Buffer& buffer : buffers_)
    if (!buffer.rows.is_same(buffer.tensor)) torch::Tensor(buffer.tensor).copy_(buffer.rows);
}

}  // namespace trireme
