#include <trireme/space/updater.h>

#include <trireme/base/error.h>
#include <trireme/base/nearest.h>
#include <algorithm>
#include <array>
#include <cmath>

namespace trireme::space {
namespace {

constexpr std::array kOptimizers = {"sgd", "momentum", "adagrad", "adam", "adamw"};

UpdaterOptions with_kind(UpdaterOptions options, Optimizer kind) {
  options.kind = kind;
  return options;
}

size_t state_vectors(Optimizer kind) {
  switch (kind) {
    case Optimizer::sgd:
      return 0;
    case Optimizer::momentum:
    case Optimizer::adagrad:
      return 1;
    case Optimizer::adam:
    case Optimizer::adamw:
      return 2;
  }
  return 0;
}

void check(const UpdaterOptions& o) {
  if (o.nesterov && o.kind != Optimizer::momentum) fail<InvalidArgument>("nesterov is a variant of momentum; {} does not have it", name_of(o.kind));
  const auto in_unit = [](double value) { return value >= 0 && value < 1; };
  if (!(o.lr >= 0) || !std::isfinite(o.lr)) fail<InvalidArgument>("the learning rate must be a number of at least 0, not {}", o.lr);
  if (!in_unit(o.momentum)) fail<InvalidArgument>("momentum must be in [0, 1), not {}", o.momentum);
  if (!in_unit(o.beta1) || !in_unit(o.beta2)) fail<InvalidArgument>("Adam's betas must be in [0, 1), not {} and {}", o.beta1, o.beta2);
  if (o.epsilon && !(*o.epsilon >= 0)) fail<InvalidArgument>("epsilon must be at least 0, not {}", *o.epsilon);
  if (!(o.weight_decay >= 0)) fail<InvalidArgument>("weight decay must be at least 0, not {}", o.weight_decay);
}

}  // namespace

UpdaterOptions sgd(UpdaterOptions options) { return with_kind(options, Optimizer::sgd); }
UpdaterOptions momentum(UpdaterOptions options) { return with_kind(options, Optimizer::momentum); }
UpdaterOptions adagrad(UpdaterOptions options) { return with_kind(options, Optimizer::adagrad); }
UpdaterOptions adam(UpdaterOptions options) { return with_kind(options, Optimizer::adam); }
UpdaterOptions adamw(UpdaterOptions options) { return with_kind(options, Optimizer::adamw); }

std::vector<std::string> optimizer_names() { return {kOptimizers.begin(), kOptimizers.end()}; }
std::string name_of(Optimizer kind) { return kOptimizers[static_cast<size_t>(kind)]; }

Optimizer optimizer_named(const std::string& name) {
  for (size_t i = 0; i < kOptimizers.size(); i++)
    if (name == kOptimizers[i]) return static_cast<Optimizer>(i);
  fail<InvalidArgument>("unknown optimizer '{}'{}", name, did_you_mean(name, optimizer_names()));
}

Updater::Updater(const UpdaterOptions& options, std::span<const Range> owned, bool shared)
    : options_(options), shared_(shared), owned_(owned.begin(), owned.end()) {
  check(options_);
  for (const Range& range : owned_) {
    state_offset_.push_back(state_size_);
    state_size_ += round_up(range.size(), kLine);
  }
  state_ = Arena::of_process(state_size_ * state_vectors(options_.kind));
}

void Updater::begin_step(double lr) {
  lr_ = lr;
  steps_++;
}

void Updater::update(size_t index, Range range, DType dtype, std::byte* parameters, std::span<const std::byte* const> gradients) {
  if (range.empty() || gradients.empty()) return;
  if (dtype != DType::f32 && dtype != DType::f64) fail<InvalidArgument>("parameters of type {} cannot be updated; keep them in f32 or f64", name_of(dtype));
  std::array<const void*, 256> sources{};
  if (gradients.size() > sources.size()) fail<InvalidArgument>("at most {} ranks per machine", sources.size());
  for (size_t k = 0; k < gradients.size(); k++) sources[k] = gradients[k] + range.begin;

  const size_t offset = state_offset_[index] + (range.begin - owned_[index].begin);
  const size_t vectors = state_vectors(options_.kind);
  kernels().update({.optimizer = options_.kind,
                    .dtype = dtype,
                    .gradients = sources.data(),
                    .sources = static_cast<int>(gradients.size()),
                    .count = range.size() / size_of(dtype),
                    .parameters = parameters + range.begin,
                    .state = {vectors > 0 ? state_.data() + offset : nullptr, vectors > 1 ? state_.data() + state_size_ + offset : nullptr},
                    .lr = lr_,
                    .momentum = options_.momentum,
                    .beta1 = options_.beta1,
                    .beta2 = options_.beta2,
                    .epsilon = options_.epsilon.value_or(options_.kind == Optimizer::adagrad ? 1e-10 : 1e-8),
                    .weight_decay = options_.weight_decay,
                    .nesterov = options_.nesterov,
                    .stream = shared_,
                    .correction1 = 1 - std::pow(options_.beta1, static_cast<double>(steps_)),
                    .correction2 = 1 - std::pow(options_.beta2, static_cast<double>(steps_))});
}

void update_present(Updater& updater, size_t index, const Layout& layout, size_t first, size_t last, Range range, DType dtype, std::byte* parameters,
                    std::span<const Source> sources) {
  std::array<const std::byte*, 256> gradients{};
  if (sources.size() > gradients.size()) fail<InvalidArgument>("at most {} sources of gradients", gradients.size());
  const auto collect = [&](const auto& has) {
    size_t count = 0;
    for (const Source& source : sources)
      if (source.present == nullptr || has(source)) gradients[count++] = source.gradients;
    return std::span<const std::byte* const>(gradients.data(), count);
  };
  const auto complete = [&](const Source& source) {
    return std::find(source.present, source.present + (last - first), uint8_t{0}) == source.present + (last - first);
  };
  if (collect(complete).size() == sources.size()) return updater.update(index, range, dtype, parameters, collect(complete));
  for (size_t slot = first; slot < last; slot++)
    if (const auto some = collect([&](const Source& source) { return source.present[slot - first] != 0; }); !some.empty())
      updater.update(index, intersect(range, layout[slot].range), dtype, parameters, some);
}

}  // namespace trireme::space
