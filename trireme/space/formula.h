#pragma once
// The optimizers' formulas, one element at a time: for flat vectors (kernels.cpp) and for rows by key
// (ps/row_update.cpp). Not installed. In an anonymous namespace, because it is compiled once per instruction set: as an
// ordinary template, the linker would keep one of the copies for everybody.
#include <trireme/space/kernels.h>

namespace trireme::space {
namespace {

inline float root(float value) { return __builtin_sqrtf(value); }
inline double root(double value) { return __builtin_sqrt(value); }

/// The new parameter from the summed gradient `g`, the old one and its state `s` and `v`. The constants follow
/// libtorch's formulas.
template <class T, Optimizer kind, bool nesterov>
struct Formula {
  explicit Formula(const Update& u)
      : lr(static_cast<T>(u.lr)),
        decay(static_cast<T>(u.weight_decay)),
        momentum(static_cast<T>(u.momentum)),
        b1(static_cast<T>(u.beta1)),
        b2(static_cast<T>(u.beta2)),
        keep1(static_cast<T>(1 - u.beta1)),
        keep2(static_cast<T>(1 - u.beta2)),
        eps(static_cast<T>(u.epsilon)),
        shrink(static_cast<T>(1 - u.lr * u.weight_decay)),
        rate(static_cast<T>(u.lr / u.correction1)),
        root2(static_cast<T>(__builtin_sqrt(u.correction2))) {}

  T operator()(T g, T p, T* s, T* v) const {
    if constexpr (kind == Optimizer::sgd) {
      return p - lr * (g + decay * p);
    } else if constexpr (kind == Optimizer::momentum) {
      const T d = g + decay * p;
      *s = momentum * *s + d;
      return p - lr * (nesterov ? d + momentum * *s : *s);
    } else if constexpr (kind == Optimizer::adagrad) {
      const T d = g + decay * p;
      *s += d * d;
      return p - lr * d / (root(*s) + eps);
    } else {
      if constexpr (kind == Optimizer::adamw) p *= shrink;
      const T d = kind == Optimizer::adam ? g + decay * p : g;
      *s = b1 * *s + keep1 * d;
      *v = b2 * *v + keep2 * d * d;
      return p - rate * *s / (root(*v) / root2 + eps);
    }
  }

  T lr, decay, momentum, b1, b2, keep1, keep2, eps, shrink, rate, root2;
};

}  // namespace
}  // namespace trireme::space
