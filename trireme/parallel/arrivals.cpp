#include <ATen/EmptyTensor.h>
#include <ATen/record_function.h>

#include <algorithm>
#include <utility>

#include <trireme/parallel/arrivals.h>

namespace trireme {
namespace {

/// Of this thread, by all its models: a callback of libtorch's is a bare function.
struct Expecting {
  std::vector<Arrivals*> all;
  uint64_t callback = 0;
};
thread_local Expecting expecting;

/// An operator that uses parameters, until it ends.
struct Operator final : at::ObserverContext {
  std::vector<Arrivals*> users;
};

}  // namespace

struct ArrivalsObserver {
  static std::unique_ptr<at::ObserverContext> operator_begins(const at::RecordFunction& function) {
    std::unique_ptr<Operator> context;
    for (size_t i = 0; i < expecting.all.size(); i++) {
      Arrivals* const arrivals = expecting.all[i];
      for (const c10::IValue& input : function.inputs()) add(*arrivals, input);
      if (!arrivals->use_all()) continue;
      if (!context) context = std::make_unique<Operator>();
      context->users.push_back(arrivals);
    }
    return context;
  }
  static void add(Arrivals& arrivals, const c10::IValue& input) {
    if (input.isTensor()) {
      arrivals.add(input.toTensor());
    } else if (input.isTensorList()) {
      for (const at::Tensor& tensor : input.toTensorVector()) arrivals.add(tensor);
    } else if (input.isOptionalTensorList()) {
      for (const c10::optional<at::Tensor>& tensor : input.toOptionalTensorVector())
        if (tensor) arrivals.add(*tensor);
    }
  }
  static void operator_ends(const at::RecordFunction& /*function*/, at::ObserverContext* context) {
    if (context == nullptr) return;
    for (Arrivals* arrivals : static_cast<Operator*>(context)->users)
      if (std::count(expecting.all.begin(), expecting.all.end(), arrivals) > 0) arrivals->end_use();
  }
};

Arrivals::Arrivals(const std::byte* parameters, size_t bytes, Use use, std::function<void()> release)
    : parameters_(parameters), bytes_(bytes), use_(std::move(use)), release_(std::move(release)) {}

Arrivals::~Arrivals() { forsake(); }

void Arrivals::forsake() noexcept {
  failure_ = nullptr;
  dismiss();
}

void Arrivals::expect() {
  if (expecting_) return;
  expecting_ = true;
  expecting.all.push_back(this);
  if (expecting.all.size() > 1) return;
  expecting.callback = at::addThreadLocalCallback(
      at::RecordFunctionCallback(&ArrivalsObserver::operator_begins, &ArrivalsObserver::operator_ends)
          .needsInputs(true)
          .scopes({at::RecordScope::FUNCTION}));
}

void Arrivals::dismiss() {
  if (expecting_) {
    expecting_ = false;
    std::erase(expecting.all, this);
    if (expecting.all.empty()) at::removeCallback(expecting.callback);
  }
  check();
}

void Arrivals::check() {
  if (failure_) std::rethrow_exception(std::exchange(failure_, nullptr));
}

void Arrivals::add(const torch::Tensor& tensor) {
  if (failure_ || !tensor.defined() || !tensor.has_storage() || tensor.numel() == 0) return;
  const auto* const data = static_cast<const std::byte*>(tensor.data_ptr());
  if (data < parameters_ || data >= parameters_ + bytes_) return;
  const auto begin = static_cast<size_t>(data - parameters_);
  parts_.push_back(
      {begin, begin + at::detail::computeStorageNbytes(tensor.sizes(), tensor.strides(), tensor.itemsize())});
}

/// True when there is a use to end.
bool Arrivals::use_all() noexcept {
  if (parts_.empty()) return false;
  try {
    use_(parts_);
  } catch (...) {
    failure_ = std::current_exception();
  }
  parts_.clear();
  return release_ && !failure_;
}

void Arrivals::end_use() noexcept {
  try {
    release_();
  } catch (...) {
    failure_ = std::current_exception();
  }
}

}  // namespace trireme
