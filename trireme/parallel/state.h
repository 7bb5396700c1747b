#pragma once
// A module's buffers as state, beside what the exchange has: "buffers/NAME", the mean over all ranks, and where each
// has statistics of its own, "worker/2/buffers/NAME".
#include <torch/types.h>

#include <string>
#include <utility>
#include <vector>

#include <trireme/state/visitor.h>

namespace trireme {

/// Shows buffers as they lie in memory, row by row. Valid while the tensors are.
class BufferState {
 public:
  using Named = std::vector<std::pair<std::string, torch::Tensor>>;
  explicit BufferState(Named buffers);

  std::vector<state::Part> parts() const;
  /// What was written to parts() becomes the buffers'.
  void store() const;

 private:
  struct Buffer {
    std::string name;
    torch::Tensor tensor, rows;  // `rows`: the tensor itself, or a copy where its memory has another order
  };
  std::vector<Buffer> buffers_;
};

}  // namespace trireme
