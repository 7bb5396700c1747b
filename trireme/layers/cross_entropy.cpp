#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>

#include <trireme/base/error.h>
#include <trireme/layers/embedding.h>
#include <trireme/layers/vocabulary.h>

namespace trireme::layers {
namespace {

using torch::Tensor;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

/// −log softmax at the target is log Σ exp(l − m) − (l_target − m), with m the largest logit of all ranks. The gradient
/// of a logit is its softmax, less 1 for the target: each rank has what it needs for its own.
struct CrossEntropyFunction : torch::autograd::Function<CrossEntropyFunction> {
  static Tensor forward(AutogradContext* context, const Tensor& logits, const Tensor& targets, const TensorGroup& group,
                        int64_t ignore) {
    const int64_t count = logits.size(1), begin = group.rank() * count;
    Tensor top = logits.amax(1);
    group.allreduce(top, Op::max);
    Tensor powers = (logits - top.unsqueeze(1)).exp_();

    const auto [place, here] = places_in(targets, begin, count);
    const Tensor counts = targets.ne(ignore), mine = here.logical_and(counts);
    Tensor sums = torch::stack({powers.sum(1), (logits.gather(1, place.unsqueeze(1)).squeeze(1) - top) * mine});
    group.allreduce(sums, Op::sum);

    const int64_t number = std::max<int64_t>(1, counts.sum().item<int64_t>());
    const Tensor weight = counts.to(logits.scalar_type()) / number;
    context->save_for_backward({powers.div_(sums[0].unsqueeze(1)), place, mine, weight});
    return ((sums[0].log() - sums[1]) * weight).sum();
  }

  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    TORCH_CHECK(!torch::GradMode::is_enabled(), "parallel_cross_entropy has no second derivatives (create_graph)");
    const auto saved = context->get_saved_variables();
    const Tensor &softmax = saved[0], &place = saved[1], &mine = saved[2];
    const Tensor weight = saved[3] * gradients[0];
    Tensor gradient = softmax * weight.unsqueeze(1);
    gradient.scatter_add_(1, place.unsqueeze(1), (weight * mine).neg_().unsqueeze(1));
    return {gradient, Tensor(), Tensor(), Tensor()};
  }
};

void check_targets(const Tensor& targets, int64_t vocabulary, int64_t ignore) {
  const Tensor wrong = targets.ne(ignore).logical_and_(targets.lt(0).logical_or_(targets.ge(vocabulary)));
  if (!wrong.any().item<bool>()) return;
  fail<InvalidArgument>("target {} is not in a vocabulary of {}: targets are 0 to {}, or {} where there is none",
                        targets.masked_select(wrong)[0].item<int64_t>(), vocabulary, vocabulary - 1, ignore);
}

}  // namespace

torch::Tensor parallel_cross_entropy(const Tensor& logits, const Tensor& targets, const TensorGroup& group,
                                     int64_t ignore) {
  if (logits.dim() != 2 || targets.dim() != 1 || logits.size(0) != targets.size(0))
    fail<InvalidArgument>("cross entropy takes logits [samples, vocabulary] and targets [samples], not {} and {}",
                          c10::str(logits.sizes()), c10::str(targets.sizes()));
  check_targets(targets, logits.size(1) * group.size(), ignore);
  const bool narrow = logits.scalar_type() == torch::kBFloat16 || logits.scalar_type() == torch::kFloat16;
  const Tensor wide = narrow ? logits.to(torch::kFloat32) : logits;
  if (!group.alone()) return CrossEntropyFunction::apply(wide, targets, group, ignore);
  const int64_t number = std::max<int64_t>(1, targets.ne(ignore).sum().item<int64_t>());
  return torch::cross_entropy_loss(wide, targets, {}, torch::Reduction::Sum, ignore) / number;
}

}  // namespace trireme::layers
