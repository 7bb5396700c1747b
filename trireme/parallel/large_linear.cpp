#include <trireme/parallel/large_linear.h>

#include <torch/torch.h>

namespace trireme {
namespace {

using torch::Tensor;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

thread_local bool weights_first = false;

// Two nodes, as a node's gradients are handed over when it has computed all of them. Backward comes through WeightPath first.

/// The layer, with a gradient for its input alone.
struct InputPath : torch::autograd::Function<InputPath> {
  static Tensor forward(AutogradContext* context, const Tensor& input, const Tensor& weight, const Tensor& bias) {
    context->save_for_backward({weight});
    return torch::linear(input, weight, bias);
  }
  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    return {gradients[0].mm(context->get_saved_variables()[0]), Tensor(), Tensor()};
  }
};

/// Passes the layer's output on, with gradients for weight and bias.
struct WeightPath : torch::autograd::Function<WeightPath> {
  static Tensor forward(AutogradContext* context, const Tensor& output, const Tensor& input, const Tensor& /*weight*/, const Tensor& /*bias*/) {
    context->save_for_backward({input});
    return output;
  }
  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    const Tensor& gradient = gradients[0];
    return {gradient, Tensor(), gradient.t().mm(context->get_saved_variables()[0]), gradient.sum(0)};
  }
};

}  // namespace

WeightsFirst::WeightsFirst(bool on) : before_(weights_first) { weights_first = on; }
WeightsFirst::~WeightsFirst() { weights_first = before_; }

torch::Tensor LargeLinearImpl::forward(const torch::Tensor& input) {
  const bool trains = weight.requires_grad() && bias.defined() && bias.requires_grad() && input.requires_grad() && torch::GradMode::is_enabled();
  if (!weights_first || !trains || weight.numel() < kLeast || input.dim() != 2) return LinearImpl::forward(input);
  // Detached, or the engine would wait for the other path as well before it hands a gradient over.
  return WeightPath::apply(InputPath::apply(input, weight.detach(), bias.detach()), input.detach(), weight, bias);
}

}  // namespace trireme
