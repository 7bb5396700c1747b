#include <ATen/EmptyTensor.h>
#include <ATen/record_function.h>

#include <utility>

#include <trireme/parallel/arrivals.h>

namespace trireme {
namespace {

thread_local Arrivals* expected = nullptr;  // a callback of libtorch's is a bare function

}  // namespace

struct ArrivalsObserver {
  static std::unique_ptr<at::ObserverContext> operator_begins(const at::RecordFunction& function) {
    if (expected == nullptr) return nullptr;
    for (const c10::IValue& input : function.inputs()) {
      if (input.isTensor()) {
        expected->use(input.toTensor());
      } else if (input.isTensorList()) {
        for (const at::Tensor& tensor : input.toTensorVector()) expected->use(tensor);
      } else if (input.isOptionalTensorList()) {
        for (const c10::optional<at::Tensor>& tensor : input.toOptionalTensorVector())
          if (tensor) expected->use(*tensor);
      }
    }
    return nullptr;
  }
};

Arrivals::Arrivals(const std::byte* parameters, size_t bytes, std::function<void(space::Range)> await)
    : parameters_(parameters), bytes_(bytes), await_(std::move(await)) {}

Arrivals::~Arrivals() {
  failure_ = nullptr;
  dismiss();
}

void Arrivals::expect() {
  if (expecting_) return;
  expecting_ = true;
  expected = this;
  callback_ = at::addThreadLocalCallback(at::RecordFunctionCallback(&ArrivalsObserver::operator_begins)
                                             .needsInputs(true)
                                             .scopes({at::RecordScope::FUNCTION}));
}

void Arrivals::dismiss() {
  if (!expecting_) return;
  expecting_ = false;
  expected = nullptr;
  at::removeCallback(callback_);
  if (failure_) std::rethrow_exception(std::exchange(failure_, nullptr));
}

void Arrivals::use(const torch::Tensor& tensor) noexcept {
  if (failure_ || !tensor.defined() || !tensor.has_storage() || tensor.numel() == 0) return;
  try {
    const auto* const data = static_cast<const std::byte*>(tensor.data_ptr());
    if (data < parameters_ || data >= parameters_ + bytes_) return;
    const auto begin = static_cast<size_t>(data - parameters_);
    await_({begin, begin + at::detail::computeStorageNbytes(tensor.sizes(), tensor.strides(), tensor.itemsize())});
  } catch (...) {
    failure_ = std::current_exception();
  }
}

}  // namespace trireme
