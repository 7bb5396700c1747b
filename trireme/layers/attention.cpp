#include <cmath>
#include <limits>

#include <trireme/base/error.h>
#include <trireme/layers/attention.h>
#include <trireme/layers/collectives.h>
#include <trireme/layers/dropout.h>

namespace trireme::layers {
namespace {

using torch::Tensor;

/// [batch, time, heads · d] → [batch · heads, time, d]
Tensor by_head(const Tensor& joint, int64_t heads) {
  const int64_t batch = joint.size(0), time = joint.size(1), d = joint.size(2) / heads;
  return joint.view({batch, time, heads, d}).transpose(1, 2).reshape({batch * heads, time, d});
}

}  // namespace

torch::Tensor attend(const Tensor& query, const Tensor& key, const Tensor& value, int64_t heads, const Tensor& mask,
                     double dropout, const TensorGroup& group) {
  const int64_t batch = query.size(0), time = query.size(1), width = query.size(2);
  const double scale = 1 / std::sqrt(static_cast<double>(width / heads));
  const Tensor q = by_head(query, heads), k = by_head(key, heads).transpose(1, 2), v = by_head(value, heads);
  const Tensor scores = torch::baddbmm(mask, q, k, 1, scale);
  Tensor share = torch::softmax(scores, -1);
  if (dropout > 0)
    share = layers::dropout(share.view({batch, heads, time, time}), dropout, true, group, 1).view(share.sizes());
  return share.bmm(v).view({batch, heads, time, width / heads}).transpose(1, 2).reshape({batch, time, width});
}

ParallelAttentionImpl::ParallelAttentionImpl(int64_t width, int64_t heads, const TensorGroup& group,
                                             const AttentionOptions& options)
    : torch::nn::Module("ParallelAttention"), group_(group), options_(options), heads_(group.share_of("heads", heads)) {
  if (width % heads != 0)
    fail<InvalidArgument>("width {} cannot be divided among {} heads: use {}", width, heads,
                          width < heads ? fmt::format("{}", heads)
                                        : fmt::format("{} or {}", width / heads * heads, (width / heads + 1) * heads));
  const ColumnOptions column{.deviation = options.deviation, .sequence = options.sequence};
  query = register_module("query", ColumnLinear(width, width, group, column));
  key = register_module("key", ColumnLinear(width, width, group, column));
  value = register_module("value", ColumnLinear(width, width, group, column));
  out = register_module("out", RowLinear(width, width, group,
                                         RowOptions{.deviation = options.out_deviation, .sequence = options.sequence}));
}

const torch::Tensor& ParallelAttentionImpl::mask_for(const Tensor& query) {
  const int64_t time = options_.causal ? query.size(1) : 1;
  if (!mask_.defined() || mask_.size(0) != time || mask_.scalar_type() != query.scalar_type()) {
    const c10::InferenceMode kept_for_training(false);
    mask_ = torch::full({time, time}, -std::numeric_limits<double>::infinity(), query.options()).triu(1);
  }
  return mask_;
}

torch::Tensor ParallelAttentionImpl::forward(const Tensor& input) {
  const Tensor shared = enter(input, group_, options_.sequence);
  const Tensor q = query->inner(shared);
  return out->forward(attend(q, key->inner(shared), value->inner(shared), heads_, mask_for(q),
                             is_training() ? options_.dropout : 0, group_));
}

}  // namespace trireme::layers
