#include <ATen/autocast_mode.h>
#include <ATen/ops/group_norm.h>
#include <ATen/ops/layer_norm.h>
#include <torch/library.h>

#include <algorithm>

#include <trireme/base/error.h>
#include <trireme/parallel/precision.h>

namespace trireme {
namespace {

using torch::Tensor;
using Weight = c10::optional<Tensor>;

Tensor widened(const Tensor& input) {
  return input.scalar_type() == torch::kBFloat16 ? input.to(torch::kFloat32) : input;
}

/// Autocast of 1.13 has forgotten them: with an input in bf16 and a weight in f32 they fail.
struct NormKernels {
  static Tensor layer_norm(const Tensor& input, at::IntArrayRef shape, const Weight& weight, const Weight& bias,
                           double eps, bool cudnn) {
    const c10::impl::ExcludeDispatchKeyGuard below(c10::DispatchKey::AutocastCPU);
    return at::layer_norm(widened(input), shape, weight, bias, eps, cudnn);
  }
  static Tensor group_norm(const Tensor& input, int64_t groups, const Weight& weight, const Weight& bias, double eps,
                           bool cudnn) {
    const c10::impl::ExcludeDispatchKeyGuard below(c10::DispatchKey::AutocastCPU);
    return at::group_norm(widened(input), groups, weight, bias, eps, cudnn);
  }

  /// Once per process; outside of autocast they are never called.
  static void install() {
    static const torch::Library kernels = [] {
      torch::Library library(torch::Library::IMPL, "aten", c10::DispatchKey::AutocastCPU, __FILE__, __LINE__);
      library.impl("layer_norm", &layer_norm);
      library.impl("group_norm", &group_norm);
      return library;
    }();
  }
};

}  // namespace

InPrecision::InPrecision(Precision precision)
    : changes_(precision == Precision::bf16), before_(at::autocast::is_cpu_enabled()) {
  if (!changes_) return;
  NormKernels::install();
  at::autocast::set_autocast_cpu_dtype(at::kBFloat16);
  at::autocast::set_cpu_enabled(true);
}

InPrecision::~InPrecision() {
  if (!changes_) return;
  at::autocast::set_cpu_enabled(before_);
  at::autocast::clear_cache();  // parameters change
}

void check_precision(Precision precision, const std::vector<Named>& parameters) {
  if (precision == Precision::f32) return;
  for (const auto& [name, tensor] : parameters)
    if (tensor.is_floating_point() && tensor.scalar_type() != torch::kFloat32)
      fail<InvalidArgument>(
          "precision bf16 computes with parameters of f32 in 16 bits, and '{}' is {}: use one or the "
          "other",
          name, format_name(tensor.scalar_type()));
  if (std::none_of(parameters.begin(), parameters.end(), [](const Named& one) { return one.tensor.dim() > 1; }))
    fail<InvalidArgument>(
        "precision bf16 is for matrix products and convolutions, and this model has no parameter with two dimensions: "
        "use f32");
}

}  // namespace trireme
