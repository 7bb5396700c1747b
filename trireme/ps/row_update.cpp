// Compiled with the options of space/kernels.cpp, so that the loops become vector instructions and give the same bits
// as its update.
#include <cmath>
#include <limits>

#include <trireme/ps/row_update.h>

namespace trireme::ps {
namespace {

using space::Optimizer;

/// The settings of one push as the loops use them, rounded as space/kernels.cpp rounds them.
struct Constants {
  float lr, decay, momentum, b1, b2, keep1, keep2, eps, shrink;
  bool nesterov;
};

Constants constants_of(const space::UpdaterOptions& o, double lr) {
  const auto f = [](double value) { return static_cast<float>(value); };
  return {.lr = f(lr),
          .decay = f(o.weight_decay),
          .momentum = f(o.momentum),
          .b1 = f(o.beta1),
          .b2 = f(o.beta2),
          .keep1 = f(1 - o.beta1),
          .keep2 = f(1 - o.beta2),
          .eps = f(o.epsilon.value_or(o.kind == Optimizer::adagrad ? 1e-10 : 1e-8)),
          .shrink = f(1 - lr * o.weight_decay),
          .nesterov = o.nesterov};
}

inline void momentum_row(const float* __restrict g, float* __restrict p, float* __restrict s, size_t width,
                         const Constants& c) {
  if (c.nesterov) {
    for (size_t i = 0; i < width; i++) {
      const float d = g[i] + c.decay * p[i];
      s[i] = c.momentum * s[i] + d;
      p[i] -= c.lr * (d + c.momentum * s[i]);
    }
    return;
  }
  for (size_t i = 0; i < width; i++) {
    s[i] = c.momentum * s[i] + (g[i] + c.decay * p[i]);
    p[i] -= c.lr * s[i];
  }
}

template <Optimizer kind>
inline void adam_row(const float* __restrict g, float* __restrict p, float* __restrict s, float* __restrict v,
                     size_t width, const Constants& c, float rate, float root2) {
  for (size_t i = 0; i < width; i++) {
    float value = p[i];
    if constexpr (kind == Optimizer::adamw) value *= c.shrink;
    const float d = kind == Optimizer::adam ? g[i] + c.decay * value : g[i];
    s[i] = c.b1 * s[i] + c.keep1 * d;
    v[i] = c.b2 * v[i] + c.keep2 * d * d;
    p[i] = value - rate * s[i] / (__builtin_sqrtf(v[i]) / root2 + c.eps);
  }
}

/// The step that a row now makes.
inline uint32_t count_step(const RowShape& shape, float* row) {
  RowTail tail = shape.tail_of(row);
  if (tail.steps < std::numeric_limits<uint32_t>::max()) tail.steps++;
  shape.set_tail(row, tail);
  return tail.steps;
}

/// All rows of a push. A width known to the compiler makes the inner loops straight lines of vector instructions; 0:
/// any width.
template <Optimizer kind, size_t kWidth>
void run(const RowShape& shape, Corrections& corrections, std::span<float* const> rows, const float* const* gradients,
         const Constants& c, double lr) {
  const size_t width = kWidth != 0 ? kWidth : shape.width, stride = shape.stride();
  for (size_t k = 0; k < rows.size(); k++) {
    if (k + kRowsAhead < rows.size()) prefetch_row(rows[k + kRowsAhead], stride);
    float* __restrict p = rows[k];
    const float* __restrict g = gradients[k];
    if constexpr (kind == Optimizer::sgd) {
      for (size_t i = 0; i < width; i++) p[i] -= c.lr * (g[i] + c.decay * p[i]);
    } else if constexpr (kind == Optimizer::momentum) {
      momentum_row(g, p, p + width, width, c);
    } else if constexpr (kind == Optimizer::adagrad) {
      float* __restrict s = p + width;
      for (size_t i = 0; i < width; i++) {
        const float d = g[i] + c.decay * p[i];
        s[i] += d * d;
        p[i] -= c.lr * d / (__builtin_sqrtf(s[i]) + c.eps);
      }
    } else {
      const Corrections::Pair correction = corrections.at(count_step(shape, p));
      adam_row<kind>(g, p, p + width, p + 2 * width, width, c, static_cast<float>(lr / correction.first),
                     static_cast<float>(correction.root_second));
    }
  }
}

template <Optimizer kind, class... Args>
void run_width(const RowShape& shape, Args&&... args) {
  switch (shape.width) {
    case 4:
      return run<kind, 4>(shape, args...);
    case 8:
      return run<kind, 8>(shape, args...);
    case 16:
      return run<kind, 16>(shape, args...);
    case 32:
      return run<kind, 32>(shape, args...);
    case 64:
      return run<kind, 64>(shape, args...);
    case 128:
      return run<kind, 128>(shape, args...);
    default:
      return run<kind, 0>(shape, args...);
  }
}

size_t state_vectors(Optimizer kind) {
  if (kind == Optimizer::sgd) return 0;
  return kind == Optimizer::adam || kind == Optimizer::adamw ? 2 : 1;
}

constexpr size_t kKnown = 1 << 16;  // corrections kept; with the usual betas all later ones are 1

}  // namespace

RowShape RowShape::of(const space::UpdaterOptions& optimizer, size_t width, bool ages) {
  const size_t vectors = state_vectors(optimizer.kind);
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
  const Constants c = constants_of(optimizer_, lr);
  switch (optimizer_.kind) {
    case Optimizer::sgd:
      return run_width<Optimizer::sgd>(shape_, corrections_, rows, gradients, c, lr);
    case Optimizer::momentum:
      return run_width<Optimizer::momentum>(shape_, corrections_, rows, gradients, c, lr);
    case Optimizer::adagrad:
      return run_width<Optimizer::adagrad>(shape_, corrections_, rows, gradients, c, lr);
    case Optimizer::adam:
      return run_width<Optimizer::adam>(shape_, corrections_, rows, gradients, c, lr);
    case Optimizer::adamw:
      return run_width<Optimizer::adamw>(shape_, corrections_, rows, gradients, c, lr);
  }
}

}  // namespace trireme::ps
