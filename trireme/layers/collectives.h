#pragma once
// Collectives as nodes of the graph. They come in conjugate pairs: what one does in the forward pass the other does in
// the backward pass.
//
//                 forward                    backward                     use
//   copy          identity                   sum of the gradients         in front of layers that each have a part of
//   sum           sum over ranks             identity                     behind them
//   gather        all parts, along `dim`     own part                     what every rank goes on with alike
//   gather_copy   all parts, along `dim`     own part of their sum        copy, of something cut along `dim`
//   sum_scatter   own part of the sum        all parts                    sum, of which each rank keeps a part
//
// With a rank alone all are the identity and leave no node. They have no second derivatives.
#include <trireme/layers/tensor_group.h>

namespace trireme::layers {

torch::Tensor copy(const torch::Tensor& input, const TensorGroup& group);
torch::Tensor sum(const torch::Tensor& input, const TensorGroup& group);
/// In the memory of `input` where autograd allows it: for a result that nobody else has seen.
torch::Tensor sum_(torch::Tensor input, const TensorGroup& group);
torch::Tensor gather(const torch::Tensor& input, int64_t dim, const TensorGroup& group);
torch::Tensor gather_copy(const torch::Tensor& input, int64_t dim, const TensorGroup& group);
torch::Tensor sum_scatter(const torch::Tensor& input, int64_t dim, const TensorGroup& group);

/// Where activations between layers are split over the sequence, [batch, time, …], they are so along this dim.
constexpr int64_t kTime = 1;
/// What a column layer does first and a row layer last: copy and sum, or their forms for a split sequence.
inline torch::Tensor enter(const torch::Tensor& input, const TensorGroup& group, bool sequence) {
  return sequence ? gather_copy(input, kTime, group) : copy(input, group);
}
inline torch::Tensor leave(torch::Tensor input, const TensorGroup& group, bool sequence) {
  return sequence ? sum_scatter(input, kTime, group) : sum_(std::move(input), group);
}
/// A parameter that every rank has, used on a part of the sequence: its gradients are parts of a sum.
inline torch::Tensor used_on_part(const torch::Tensor& parameter, const TensorGroup& group, bool sequence) {
  return sequence && parameter.defined() ? copy(parameter, group) : parameter;
}

}  // namespace trireme::layers
