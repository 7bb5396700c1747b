#pragma once
// Multi-head attention whose heads are divided among tensor ranks.
//
// Queries, keys and values come from column layers, so a rank has those of its own heads, attends alone, and a row
// layer sums over ranks: one sum in the forward pass and one in the backward pass. [batch, time, width] in and out.
#include <trireme/layers/linear.h>

namespace trireme::layers {

struct AttentionOptions {
  bool causal = false;  // no position sees later ones
  double dropout = 0;   // of the probabilities
  /// See ColumnOptions; `out_deviation` is for the last layer.
  double deviation = 0, out_deviation = 0;
  bool sequence = false;
};

/// softmax(q kᵀ / √d) v, with q, k and v [batch, time, heads · d] and as many `heads` of this rank. `mask` is added to
/// the scores, [time, time] or [1, 1]. `group`: those who have the other heads, for dropout.
torch::Tensor attend(const torch::Tensor& query, const torch::Tensor& key, const torch::Tensor& value, int64_t heads,
                     const torch::Tensor& mask, double dropout = 0, const TensorGroup& group = {});

/// `width` must be divisible by `heads`, and `heads` by the number of ranks (InvalidArgument).
class ParallelAttentionImpl : public torch::nn::Module {
 public:
  ParallelAttentionImpl(int64_t width, int64_t heads, const TensorGroup& group = {},
                        const AttentionOptions& options = {});
  torch::Tensor forward(const torch::Tensor& input);

  ColumnLinear query{nullptr}, key{nullptr}, value{nullptr};
  RowLinear out{nullptr};

 private:
  const torch::Tensor& mask_for(const torch::Tensor& query);

  TensorGroup group_;
  AttentionOptions options_;
  int64_t heads_;       // of this rank
  torch::Tensor mask_;  // [time, time], added to scores; made for the first input of its kind
};
TORCH_MODULE(ParallelAttention);

}  // namespace trireme::layers
