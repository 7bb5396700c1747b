#include <ATen/RedispatchFunctions.h>
#include <ATen/autocast_mode.h>
#include <ATen/ops/addmm_cpu_dispatch.h>
#include <ATen/ops/embedding_native.h>
#include <ATen/ops/linear_native.h>
#include <ATen/ops/matmul_native.h>
#include <c10/util/ScopeExit.h>
#include <torch/library.h>

#include <map>
#include <optional>

#include <trireme/base/error.h>
#include <trireme/base/lock.h>
#include <trireme/layers/collectives.h>
#include <trireme/layers/shard_kernel.h>
#include <trireme/layers/vocabulary.h>
#include <trireme/torch/compat.h>

namespace trireme::layers {
namespace {

using torch::Tensor;
using TorchOptional = c10::optional<Tensor>;

/// The weights of all divided modules of this process: an operator knows nothing but its arguments.
class KnownWeights {
 public:
  void add(const Tensor& weight, const WeightCut& cut) TRIREME_EXCLUDES(mutex_) {
    const Lock lock(mutex_);
    const auto [known, first] = cuts_.emplace(weight.unsafeGetTensorImpl(), cut);
    if (!first) known->second.gathered |= cut.gathered;  // an embedding that is an output layer too
  }
  void remove(const Tensor& weight) TRIREME_EXCLUDES(mutex_) {
    const Lock lock(mutex_);
    cuts_.erase(weight.unsafeGetTensorImpl());
  }
  std::optional<WeightCut> find(const Tensor& weight) TRIREME_EXCLUDES(mutex_) {
    const Lock lock(mutex_);
    const auto found = cuts_.find(weight.unsafeGetTensorImpl());
    return found == cuts_.end() ? std::nullopt : std::optional(found->second);
  }

 private:
  Mutex mutex_;
  std::map<const c10::TensorImpl*, WeightCut> cuts_ TRIREME_GUARDED_BY(mutex_);
};

KnownWeights& known_weights() {
  static KnownWeights weights;
  return weights;
}

/// This thread computes with a part as such: the operators below call each other.
thread_local bool within = false;

Tensor part_linear(const Tensor& input, const Tensor& weight, const TorchOptional& bias) {
  within = true;
  const auto leave = c10::make_scope_exit([] { within = false; });
  return at::native::linear(input, weight, bias);
}

Tensor divided_linear(const WeightCut& cut, const Tensor& input, const Tensor& weight, const TorchOptional& bias) {
  if (cut.dim == 0 && !cut.gathered) return part_linear(copy(input, cut.group), weight, bias);
  if (cut.dim == 1 && input.size(-1) != weight.size(1))
    fail<InvalidArgument>(
        "a Row layer of {} inputs got {}: it takes this rank's part of them, {}, as the Column layer before it gives",
        weight.size(1) * cut.group.size(), input.size(-1), weight.size(1));
  const Tensor output = cut.dim == 0 ? gather(part_linear(copy(input, cut.group), weight, {}), -1, cut.group)
                                     : sum_(part_linear(input, weight, {}), cut.group);
  return bias.has_value() && bias->defined() ? output + *bias : output;
}

/// The weight of a linear layer, which operators get transposed.
struct KnownFactor {
  Tensor weight;
  WeightCut cut;
};

std::optional<KnownFactor> known_factor(const Tensor& matrix) {
  if (within || matrix.dim() != 2 || !matrix.is_view()) return std::nullopt;
  const Tensor weight(matrix._base());
  const auto cut = known_weights().find(weight);
  const bool transposed = cut && matrix.data_ptr() == weight.data_ptr() && matrix.size(0) == weight.size(1) &&
                          matrix.size(1) == weight.size(0) && matrix.stride(0) == weight.stride(1) &&
                          matrix.stride(1) == weight.stride(0);
  return transposed ? std::optional(KnownFactor{weight, *cut}) : std::nullopt;
}

Tensor linear(const Tensor& input, const Tensor& weight, const TorchOptional& bias) {
  const auto cut = known_weights().find(weight);
  return cut ? divided_linear(*cut, input, weight, bias) : at::native::linear(input, weight, bias);
}

Tensor matmul(const Tensor& input, const Tensor& matrix) {
  const auto known = known_factor(matrix);
  return known ? divided_linear(known->cut, input, known->weight, {}) : at::native::matmul(input, matrix);
}

/// libtorch's kernel behind one of these, which has the gradient: it is AutogradOther's too.
c10::DispatchKeySet behind(c10::DispatchKeySet keys) {
  return keys.remove(c10::DispatchKey::AutogradCPU).add(c10::DispatchKey::AutogradOther);
}

Tensor addmm(c10::DispatchKeySet keys, const Tensor& bias, const Tensor& input, const Tensor& matrix,
             const at::Scalar& beta, const at::Scalar& alpha) {
  const auto known = known_factor(matrix);
  return known ? divided_linear(known->cut, input, known->weight, bias)
               : at::redispatch::addmm(behind(keys), bias, input, matrix, beta, alpha);
}

/// Behind the one above, or alone in inference mode.
Tensor inner_addmm(const Tensor& bias, const Tensor& input, const Tensor& matrix, const at::Scalar& beta,
                   const at::Scalar& alpha) {
  const auto known = c10::InferenceMode::is_enabled() ? known_factor(matrix) : std::nullopt;
  return known ? divided_linear(known->cut, input, known->weight, bias)
               : at::cpu::addmm(bias, input, matrix, beta, alpha);
}

// ---- autocast comes first, and would hand copies of weights on ----

template <class Argument>
auto narrowed(const Argument& argument) {
  return at::autocast::cached_cast(at::autocast::get_autocast_cpu_dtype(), argument, c10::DeviceType::CPU);
}

Tensor narrow_linear(const WeightCut& cut, const Tensor& input, const Tensor& weight, const TorchOptional& bias) {
  return divided_linear(cut, narrowed(input), narrowed(weight), narrowed(bias));
}

Tensor autocast_linear(const Tensor& input, const Tensor& weight, const TorchOptional& bias) {
  const c10::impl::ExcludeDispatchKeyGuard once(c10::DispatchKey::AutocastCPU);
  if (const auto cut = known_weights().find(weight)) return narrow_linear(*cut, input, weight, bias);
  return at::linear(narrowed(input), narrowed(weight), narrowed(bias));
}

Tensor autocast_matmul(const Tensor& input, const Tensor& matrix) {
  const c10::impl::ExcludeDispatchKeyGuard once(c10::DispatchKey::AutocastCPU);
  if (const auto known = known_factor(matrix)) return narrow_linear(known->cut, input, known->weight, {});
  return at::matmul(narrowed(input), narrowed(matrix));
}

Tensor autocast_addmm(const Tensor& bias, const Tensor& input, const Tensor& matrix, const at::Scalar& beta,
                      const at::Scalar& alpha) {
  const c10::impl::ExcludeDispatchKeyGuard once(c10::DispatchKey::AutocastCPU);
  if (const auto known = known_factor(matrix)) return narrow_linear(known->cut, input, known->weight, bias);
  return at::addmm(narrowed(bias), narrowed(input), narrowed(matrix), beta, alpha);
}

// ---- embeddings ----

template <class LookUp>
Tensor divided_embedding(const WeightCut& cut, int64_t rows, const Tensor& tokens, const LookUp& look_up) {
  check_tokens(tokens, rows * cut.group.size());
  const auto [place, mine] = places_in(tokens, cut.group.rank() * rows, rows);
  return sum_(look_up(place) * mine.unsqueeze(-1), cut.group);
}

Tensor embedding(c10::DispatchKeySet keys, const Tensor& weight, const Tensor& tokens, int64_t padding,
                 bool by_frequency, bool sparse) {
  const auto look_up = [&](const Tensor& places) {
    return at::redispatch::embedding(behind(keys), weight, places, padding, by_frequency, sparse);
  };
  const auto cut = known_weights().find(weight);
  return cut ? divided_embedding(*cut, weight.size(0), tokens, look_up) : look_up(tokens);
}

/// Behind the one above, or alone in inference mode.
Tensor inner_embedding(const Tensor& weight, const Tensor& tokens, int64_t padding, bool by_frequency, bool sparse) {
  const auto look_up = [&](const Tensor& places) {
    return at::native::embedding(weight, places, padding, by_frequency, sparse);
  };
  const auto cut = c10::InferenceMode::is_enabled() ? known_weights().find(weight) : std::nullopt;
  return cut ? divided_embedding(*cut, weight.size(0), tokens, look_up) : look_up(tokens);
}

torch::Library kernels_for(c10::DispatchKey key, const std::function<void(torch::Library&)>& add) {
  torch::Library library(torch::Library::IMPL, "aten", key, __FILE__, __LINE__);
  add(library);
  return library;
}

/// Once per process, when it is first needed.
void put_shard_kernels_in_front() {
  static const auto kernels = [] {
    const torch_compat::Silence silence;  // some take the place of libtorch's own
    std::vector<torch::Library> libraries;
    libraries.push_back(kernels_for(c10::DispatchKey::AutogradCPU, [](torch::Library& library) {
      library.impl("linear", TORCH_FN(linear));
      library.impl("matmul", TORCH_FN(matmul));
      library.impl("addmm", TORCH_FN(addmm));
      library.impl("embedding", TORCH_FN(embedding));
    }));
    libraries.push_back(kernels_for(c10::DispatchKey::CPU, [](torch::Library& library) {
      library.impl("linear", TORCH_FN(linear));
      library.impl("matmul", TORCH_FN(matmul));
      library.impl("addmm", TORCH_FN(inner_addmm));
      library.impl("embedding", TORCH_FN(inner_embedding));
    }));
    libraries.push_back(kernels_for(c10::DispatchKey::AutocastCPU, [](torch::Library& library) {
      library.impl("linear", TORCH_FN(autocast_linear));
      library.impl("matmul", TORCH_FN(autocast_matmul));
      library.impl("addmm", TORCH_FN(autocast_addmm));
    }));
    return libraries;
  }();
}

}  // namespace

KnownWeight::KnownWeight(const Tensor& weight, const WeightCut& cut) : weight_(weight) {
  put_shard_kernels_in_front();
  known_weights().add(weight_, cut);
}

KnownWeight::~KnownWeight() { known_weights().remove(weight_); }

}  // namespace trireme::layers
