#include <torch/autograd.h>

#include <algorithm>

#include <trireme/parallel/large_linear.h>

namespace trireme {
namespace {

using torch::Tensor;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

thread_local bool weights_first = false;

/// The same memory outside the graph, which still finds out when it is changed before backward. Not by an operator:
/// that would wait for all of it (arrivals.h).
Tensor detached(const Tensor& parameter) {
  Tensor result = parameter.variable_data();
  torch::autograd::impl::set_version_counter(result, torch::autograd::impl::version_counter(parameter));
  return result;
}

void refuse_second_derivatives() {
  TORCH_CHECK(!torch::GradMode::is_enabled(),
              "a large layer has no second derivatives between machines: take torch::nn::Linear for it");
}

// Two nodes, as a node's gradients are handed over when it has computed all of them. Backward comes through WeightPath
// first.

/// Rows of a matrix, again not by an operator.
Tensor rows_of(const Tensor& matrix, int64_t begin, int64_t end) {
  const int64_t width = matrix.size(1);
  return torch::from_blob(
      static_cast<char*>(matrix.data_ptr()) + begin * width * static_cast<int64_t>(matrix.itemsize()),
      {end - begin, width}, matrix.options());
}

/// The layer, with a gradient for its input alone.
struct InputPath : torch::autograd::Function<InputPath> {
  static Tensor forward(AutogradContext* context, const Tensor& input, const Tensor& weight, const Tensor& bias) {
    context->save_for_backward({weight});
    const int64_t outputs = weight.size(0), rows = std::max<int64_t>(1, LargeLinearImpl::kBlock / weight.size(1));
    Tensor output = torch::empty({input.size(0), outputs}, input.options());
    for (int64_t begin = 0; begin < outputs; begin += rows) {
      const int64_t end = std::min(outputs, begin + rows);
      Tensor block = output.slice(1, begin, end);
      torch::mm_out(block, input, rows_of(weight, begin, end).t());
    }
    return output.add_(bias);  // at last: in the flat space it comes after the weight
  }
  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    refuse_second_derivatives();
    return {gradients[0].mm(context->get_saved_variables()[0]), Tensor(), Tensor()};
  }
};

/// Passes the layer's output on, with gradients for weight and bias.
struct WeightPath : torch::autograd::Function<WeightPath> {
  static Tensor forward(AutogradContext* context, const Tensor& output, const Tensor& input, const Tensor& /*weight*/,
                        const Tensor& /*bias*/) {
    context->save_for_backward({input});
    return output;
  }
  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    refuse_second_derivatives();
    const Tensor& gradient = gradients[0];
    return {gradient, Tensor(), gradient.t().mm(context->get_saved_variables()[0]), gradient.sum(0)};
  }
};

}  // namespace

WeightsFirst::WeightsFirst(bool on) : before_(weights_first) { weights_first = on; }
WeightsFirst::~WeightsFirst() { weights_first = before_; }

torch::Tensor LargeLinearImpl::forward(const torch::Tensor& input) {
  const bool trains = weight.requires_grad() && bias.defined() && bias.requires_grad() && input.requires_grad() &&
                      torch::GradMode::is_enabled();
  const bool plain = input.dim() == 2 && weight.is_contiguous() && input.scalar_type() == weight.scalar_type() &&
                     bias.scalar_type() == weight.scalar_type();
  if (!weights_first || !trains || !plain || weight.numel() < kLeast) return LinearImpl::forward(input);
  // Detached, or the engine would wait for the other path as well before it hands a gradient over.
  return WeightPath::apply(InputPath::apply(input, detached(weight), detached(bias)), input.detach(), weight, bias);
}

}  // namespace trireme
