#include <torch/csrc/autograd/custom_function.h>

#include <trireme/layers/collectives.h>

namespace trireme::layers {
namespace {

using torch::Tensor;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

constexpr const char *kGroup = "group", *kDim = "dim";

TensorGroup group_of(AutogradContext* context) {
  TORCH_CHECK(!torch::GradMode::is_enabled(), "collectives of tensor ranks have no second derivatives (create_graph)");
  return TensorGroup::from(context->saved_data[kGroup]);
}

/// A gradient that may be written to: the engine hands one tensor to several nodes where their inputs were added. Who
/// calls has it in two lists.
Tensor writable(const Tensor& gradient) {
  const bool exclusive = gradient.use_count() <= 2 && gradient.storage().use_count() == 1;
  return exclusive && gradient.is_contiguous() ? gradient : gradient.clone(torch::MemoryFormat::Contiguous);
}

struct CopyFunction : torch::autograd::Function<CopyFunction> {
  static Tensor forward(AutogradContext* context, const Tensor& input, const TensorGroup& group) {
    context->saved_data[kGroup] = group.kept();
    return input;
  }
  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    Tensor gradient = writable(gradients[0]);
    group_of(context).allreduce(gradient, Op::sum);
    return {gradient, Tensor()};
  }
};

struct SumFunction : torch::autograd::Function<SumFunction> {
  static Tensor forward(AutogradContext* context, Tensor input, const TensorGroup& group, bool in_place) {
    if (in_place)
      context->mark_dirty({input});
    else
      input = input.clone(torch::MemoryFormat::Contiguous);
    group.allreduce(input, Op::sum);
    return input;
  }
  static variable_list backward(AutogradContext* /*context*/, const variable_list& gradients) {
    return {gradients[0], Tensor(), Tensor()};
  }
};

struct GatherFunction : torch::autograd::Function<GatherFunction> {
  static Tensor forward(AutogradContext* context, const Tensor& input, int64_t dim, const TensorGroup& group) {
    context->saved_data[kGroup] = group.kept();
    context->saved_data[kDim] = dim;
    return group.all_gather(input, dim);
  }
  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    return {group_of(context).part_of(gradients[0], context->saved_data[kDim].toInt()), Tensor(), Tensor()};
  }
};

struct GatherCopyFunction : torch::autograd::Function<GatherCopyFunction> {
  static Tensor forward(AutogradContext* context, const Tensor& input, int64_t dim, const TensorGroup& group) {
    return GatherFunction::forward(context, input, dim, group);
  }
  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    const int64_t dim = context->saved_data[kDim].toInt();
    return {group_of(context).reduce_scatter(gradients[0], dim), Tensor(), Tensor()};
  }
};

struct SumScatterFunction : torch::autograd::Function<SumScatterFunction> {
  static Tensor forward(AutogradContext* context, const Tensor& input, int64_t dim, const TensorGroup& group) {
    context->saved_data[kGroup] = group.kept();
    context->saved_data[kDim] = dim;
    return group.reduce_scatter(input, dim);
  }
  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    const int64_t dim = context->saved_data[kDim].toInt();
    return {group_of(context).all_gather(gradients[0], dim), Tensor(), Tensor()};
  }
};

bool differentiated(const Tensor& input) { return torch::GradMode::is_enabled() && input.requires_grad(); }

}  // namespace

torch::Tensor copy(const Tensor& input, const TensorGroup& group) {
  return group.alone() || !differentiated(input) ? input : CopyFunction::apply(input, group);
}

torch::Tensor sum(const Tensor& input, const TensorGroup& group) {
  if (group.alone()) return input;
  if (differentiated(input)) return SumFunction::apply(input, group, false);
  return sum_(input.clone(torch::MemoryFormat::Contiguous), group);
}

torch::Tensor sum_(Tensor input, const TensorGroup& group) {
  if (group.alone()) return input;
  if (differentiated(input))
    return SumFunction::apply(input, group, input.is_contiguous() && !input.is_view() && !input.is_leaf());
  input = input.contiguous();
  group.allreduce(input, Op::sum);
  return input;
}

torch::Tensor gather(const Tensor& input, int64_t dim, const TensorGroup& group) {
  return group.alone() || !differentiated(input) ? group.all_gather(input, dim)
                                                 : GatherFunction::apply(input, dim, group);
}

torch::Tensor gather_copy(const Tensor& input, int64_t dim, const TensorGroup& group) {
  return group.alone() || !differentiated(input) ? group.all_gather(input, dim)
                                                 : GatherCopyFunction::apply(input, dim, group);
}

torch::Tensor sum_scatter(const Tensor& input, int64_t dim, const TensorGroup& group) {
  return group.alone() || !differentiated(input) ? group.reduce_scatter(input, dim)
                                                 : SumScatterFunction::apply(input, dim, group);
}

}  // namespace trireme::layers
