#pragma once
// The only place that knows how libtorch versions differ (1.13 and 2.x), and how its types map to ours.
#include <c10/core/Allocator.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/variable.h>
#include <torch/types.h>
#include <torch/version.h>

#include <functional>
#include <memory>

#include <trireme/base/error.h>
#include <trireme/space/dtype.h>

namespace c10d {
class Backend;
class ProcessGroup;
}  // namespace c10d

namespace trireme::torch_compat {

/// What Gloo, NCCL and the others derive from.
#if TORCH_VERSION_MAJOR >= 2
using ProcessGroup = ::c10d::Backend;
#else
using ProcessGroup = ::c10d::ProcessGroup;
#endif

inline DType dtype_of(torch::ScalarType type) {
  switch (type) {
    case torch::kFloat32:
      return DType::f32;
    case torch::kFloat64:
      return DType::f64;
    case torch::kFloat16:
      return DType::f16;
    case torch::kBFloat16:
      return DType::bf16;
    case torch::kInt32:
      return DType::i32;
    case torch::kInt64:
      return DType::i64;
    case torch::kUInt8:
    case torch::kBool:
      return DType::u8;
    default:
      fail<InvalidArgument>("tensors of type {} are not supported", c10::toString(type));
  }
}

inline torch::ScalarType type_of(DType type) {
  switch (type) {
    case DType::f64:
      return torch::kFloat64;
    case DType::f16:
      return torch::kFloat16;
    case DType::bf16:
      return torch::kBFloat16;
    case DType::i32:
      return torch::kInt32;
    case DType::i64:
      return torch::kInt64;
    case DType::u8:
      return torch::kUInt8;
    case DType::f32:
      break;
  }
  return torch::kFloat32;
}

/// Calls `done` every time a backward pass has put the gradient of a leaf in place. Alive as long as the returned node.
class GradientHook final : public torch::autograd::FunctionPostHook {
 public:
  explicit GradientHook(std::function<void()> done) : done_(std::move(done)) {}
  torch::autograd::variable_list operator()(const torch::autograd::variable_list& outputs,
                                            const torch::autograd::variable_list&) override {
    done_();
    return outputs;
  }

 private:
  std::function<void()> done_;
};

inline std::shared_ptr<torch::autograd::Node> on_gradient(const torch::Tensor& leaf, std::function<void()> done) {
  auto node = torch::autograd::impl::grad_accumulator(leaf);
  node->add_post_hook(std::make_unique<GradientHook>(std::move(done)));
  return node;
}

/// An allocator in front of another. Since 2.3, allocate() is not const and copies go through the allocator.
struct AllocatorWrapper : c10::Allocator {
  explicit AllocatorWrapper(c10::Allocator* original) : original(original) {}
  virtual at::DataPtr hand_out(size_t bytes) const = 0;
#if TORCH_VERSION_MAJOR > 2 || (TORCH_VERSION_MAJOR == 2 && TORCH_VERSION_MINOR >= 3)
  at::DataPtr allocate(size_t bytes) final { return hand_out(bytes); }
  void copy_data(void* to, const void* from, size_t bytes) const final { original->copy_data(to, from, bytes); }
#else
  at::DataPtr allocate(size_t bytes) const final { return hand_out(bytes); }
#endif
  c10::Allocator* original;
};

/// While one lives, libtorch warns nobody, such as about a kernel that takes the place of another on purpose.
class Silence : c10::WarningHandler {
#if TORCH_VERSION_MAJOR >= 2
  void process(const c10::Warning&) override {}
  c10::WarningUtils::WarningHandlerGuard guard_{this};
#else
  void process(const c10::SourceLocation&, const std::string&, bool) override {}
  c10::Warning::WarningHandlerGuard guard_{this};
#endif
};

}  // namespace trireme::torch_compat
