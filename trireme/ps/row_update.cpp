// Compiled with the options of space/kernels.cpp, so that the loops become vector instructions and give the same bits
// as its update.
#include <cmath>
#include <limits>

#include <trireme/ps/row_update.h>
#include <trireme/space/formula.h>

namespace trireme::ps {
namespace {

using space::Optimizer;

/// The step that a row now makes.
inline uint32_t count_step(const RowShape& shape, float* row) {
  RowTail tail = shape.tail_of(row);
  if (tail.steps < std::numeric_limits<uint32_t>::max()) tail.steps++;
  shape.set_tail(row, tail);
  return tail.steps;
}

/// A push: rows and their gradients, and the settings of its update.
struct Push {
  std::span<float* const> rows;
  const float* const* gradients;
  const space::Update& settings;
};

/// All rows of a push. A width known to the compiler makes the inner loops straight lines of vector instructions; 0:
/// any width.
template <Optimizer kind, bool nesterov, size_t kWidth>
void run(const RowShape& shape, Corrections& corrections, const Push& push) {
  const size_t width = kWidth != 0 ? kWidth : shape.width, stride = shape.stride();
  const size_t first = shape.vectors > 0 ? width : 0, second = shape.vectors > 1 ? 2 * width : 0;
  space::Formula<float, kind, nesterov> formula(push.settings);
  for (size_t k = 0; k < push.rows.size(); k++) {
    if (k + kRowsAhead < push.rows.size()) prefetch_row(push.rows[k + kRowsAhead], stride);
    float* __restrict p = push.rows[k];
    const float* __restrict g = push.gradients[k];
    if constexpr (kind == Optimizer::adam || kind == Optimizer::adamw) {
      const Corrections::Pair correction = corrections.at(count_step(shape, p));
      formula.rate = static_cast<float>(push.settings.lr / correction.first);
      formula.root2 = static_cast<float>(correction.root_second);
    }
    float* __restrict s = p + first;  // a formula without state leaves it alone
    float* __restrict v = p + second;
    for (size_t i = 0; i < width; i++) p[i] = formula(g[i], p[i], s + i, v + i);
  }
}

template <Optimizer kind, bool nesterov = false, class... Args>
void run_width(const RowShape& shape, Args&&... args) {
  switch (shape.width) {
    case 4:
      return run<kind, nesterov, 4>(shape, args...);
    case 8:
      return run<kind, nesterov, 8>(shape, args...);
    case 16:
      return run<kind, nesterov, 16>(shape, args...);
    case 32:
      return run<kind, nesterov, 32>(shape, args...);
    case 64:
      return run<kind, nesterov, 64>(shape, args...);
    case 128:
      return run<kind, nesterov, 128>(shape, args...);
    default:
      return run<kind, nesterov, 0>(shape, args...);
  }
}

constexpr size_t kKnown = 1 << 16;  // corrections kept; with the usual betas all later ones are 1

}  // namespace

RowShape RowShape::of(const space::UpdaterOptions& optimizer, size_t width, bool ages) {
  const size_t vectors = space::state_vectors(optimizer.kind);
  return {.width = width, .vectors = vectors, .tail = ages || vectors == 2};
}

Corrections::Corrections(double beta1, double beta2) : beta1_(beta1), beta2_(beta2) { known_.reserve(kKnown); }

Corrections::Pair Corrections::compute(uint32_t step) const {
  return {1 - std::pow(beta1_, static_cast<double>(step)), std::sqrt(1 - std::pow(beta2_, static_cast<double>(step)))};
}

Corrections::Pair Corrections::at(uint32_t step) {
  if (step < known_.size()) return known_[step];
  if (step >= kKnown) return compute(step);
  while (known_.size() <= step) known_.push_back(compute(static_cast<uint32_t>(known_.size())));
  return known_[step];
}

void RowUpdater::update(std::span<float* const> rows, const float* const* gradients, double lr) {
  const space::Update settings = space::settings_of(optimizer_, lr);
  const Push push{rows, gradients, settings};
  switch (optimizer_.kind) {
    case Optimizer::sgd:
      return run_width<Optimizer::sgd>(shape_, corrections_, push);
    case Optimizer::momentum:
      return optimizer_.nesterov ? run_width<Optimizer::momentum, true>(shape_, corrections_, push)
                                 : run_width<Optimizer::momentum>(shape_, corrections_, push);
    case Optimizer::adagrad:
      return run_width<Optimizer::adagrad>(shape_, corrections_, push);
    case Optimizer::adam:
      return run_width<Optimizer::adam>(shape_, corrections_, push);
    case Optimizer::adamw:
      return run_width<Optimizer::adamw>(shape_, corrections_, push);
  }
}

}  // namespace trireme::ps
