#pragma once
// A backward pass in two parts: gradients of the inputs, for which the stage before waits, and those of weights, for
// which nobody does until the step ends.
//
// The graph is libtorch's own. A node that has an input's gradient and a weight's to give (a linear layer, a
// convolution, an attention's projection) computes only what it is asked for. So the first part asks for the inputs,
// and keeps what came into each such node; the second asks each of them for its weights:
//   output ─► [ linear ] ─► [ gelu ] ─► [ linear ] ─► input      first part: along this line
//                 └─► weight                └─► weight           second part: from each node down
// What is small (biases of norms, and whatever is no matrix) stays in the first part, and so does a parameter that is
// reached in more than one way, and what is computed again (layers/recompute.h), which would be computed three times.
#include <torch/csrc/autograd/edge.h>
#include <torch/csrc/autograd/function.h>
#include <torch/types.h>

#include <memory>
#include <vector>

namespace trireme {

/// One thread, which is the one that runs both parts. Gradients arrive at leaves as in any backward pass.
class SplitBackward {
 public:
  /// `roots`: the outputs' places in the graph; `inputs`: leaves that want gradients. Without any, all is left for the
  /// second part.
  SplitBackward(torch::autograd::edge_list roots, const std::vector<torch::Tensor>& inputs);
  ~SplitBackward();
  SplitBackward(SplitBackward&&) noexcept;
  SplitBackward& operator=(SplitBackward&&) noexcept;

  void inputs(torch::autograd::variable_list gradients);
  void weights();
  /// Nodes that were left for the second part.
  size_t left() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

/// The whole of it at once.
void run_backward(const torch::autograd::edge_list& roots, const torch::autograd::variable_list& gradients);

}  // namespace trireme
