// Compiled once per instruction set with TRIREME_ISA = plain, avx2, avx512 (see CMakeLists.txt). Only loops over plain memory
// live here, all in an anonymous namespace: a function template of the standard library, compiled here for AVX-512, could otherwise
// be the copy that the linker keeps for everybody.
#include <trireme/space/kernels.h>

namespace trireme::space::TRIREME_ISA {
namespace {

// ---- 16-bit floats: stored, never computed with ----

struct Half {
  uint16_t bits;
};
struct Brain {
  uint16_t bits;
};

inline uint32_t bits_of(float value) { return __builtin_bit_cast(uint32_t, value); }
inline float float_of(uint32_t bits) { return __builtin_bit_cast(float, bits); }

inline float load(float value) { return value; }
inline double load(double value) { return value; }
inline int32_t load(int32_t value) { return value; }
inline int64_t load(int64_t value) { return value; }
inline uint8_t load(uint8_t value) { return value; }
inline float load(Brain value) { return float_of(static_cast<uint32_t>(value.bits) << 16); }

inline float load(Half value) {
  const uint32_t sign = static_cast<uint32_t>(value.bits & 0x8000u) << 16, rest = value.bits & 0x7fffu;
  const float normal = float_of((rest << 13) + 0x38000000u);  // re-bias the exponent
  const float infinite = float_of((rest << 13) | 0x7f800000u);
  const float subnormal = static_cast<float>(rest) * 0x1p-24f;
  const float magnitude = rest >= 0x7c00u ? infinite : rest >= 0x0400u ? normal : subnormal;
  return float_of(bits_of(magnitude) | sign);
}

inline void store(float& out, float value) { out = value; }
inline void store(double& out, double value) { out = value; }
inline void store(int32_t& out, int32_t value) { out = value; }
inline void store(int64_t& out, int64_t value) { out = value; }
inline void store(uint8_t& out, uint8_t value) { out = value; }

inline void store(Brain& out, float value) {
  const uint32_t bits = bits_of(value);
  const uint32_t rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;  // to nearest, ties to even
  const bool nan = (bits & 0x7fffffffu) > 0x7f800000u;
  out.bits = static_cast<uint16_t>(nan ? (bits >> 16) | 0x40u : rounded);
}

inline void store(Half& out, float value) {
  const uint32_t bits = bits_of(value), sign = (bits >> 16) & 0x8000u, rest = bits & 0x7fffffffu;
  const uint32_t normal = (rest - 0x38000000u + 0x0fffu + ((rest >> 13) & 1u)) >> 13;
  const uint32_t subnormal = bits_of(float_of(rest) + 0.5f) - 0x3f000000u;  // the addition rounds to a multiple of 2⁻²⁴
  const uint32_t infinite = rest > 0x7f800000u ? 0x7e00u : 0x7c00u;
  const uint32_t magnitude = rest >= 0x477ff000u ? infinite : rest >= 0x38800000u ? normal : subnormal;
  out.bits = static_cast<uint16_t>(magnitude | sign);
}

// ---- reduce ----

template <Op op, class A>
inline A combine(A left, A right) {
  if constexpr (op == Op::min) return right < left ? right : left;
  if constexpr (op == Op::max) return left < right ? right : left;
  return left + right;
}

constexpr size_t kBlock = 1024;  // elements that stay in the first-level cache between passes

/// acc[i] = op over the sources at [begin, begin + count).
template <class T, Op op, class A>
inline void gather_block(A* __restrict acc, const void* const* sources, int n, size_t begin, size_t count) {
  const T* first = static_cast<const T*>(sources[0]) + begin;
  for (size_t i = 0; i < count; i++) acc[i] = load(first[i]);
  for (int k = 1; k < n; k++) {
    const T* next = static_cast<const T*>(sources[k]) + begin;
    for (size_t i = 0; i < count; i++) acc[i] = combine<op, A>(acc[i], load(next[i]));
  }
}

template <class T, Op op>
void reduce_pair(T* out0, T* out1, const T* a, const T* b, size_t count) {
  using A = decltype(load(T{}));
#pragma GCC ivdep  // NOLINT: clang, which only looks, does not know it
  for (size_t i = 0; i < count; i++) {
    A value = combine<op, A>(load(a[i]), load(b[i]));
    if constexpr (op == Op::mean) value = static_cast<A>(value / 2);
    store(out0[i], value);
    store(out1[i], value);
  }
}

template <class T, Op op>
void reduce_many(void* const* outs, int n_outs, const void* const* sources, int n, size_t count) {
  using A = decltype(load(T{}));
  alignas(64) A acc[kBlock];
  for (size_t begin = 0; begin < count; begin += kBlock) {
    const size_t size = count - begin < kBlock ? count - begin : kBlock;
    gather_block<T, op, A>(acc, sources, n, begin, size);
    if constexpr (op == Op::mean)
      for (size_t i = 0; i < size; i++) acc[i] = static_cast<A>(acc[i] / static_cast<A>(n));
    for (int k = 0; k < n_outs; k++) {
      T* out = static_cast<T*>(outs[k]) + begin;
      for (size_t i = 0; i < size; i++) store(out[i], acc[i]);
    }
  }
}

template <class T, Op op>
void reduce_as(void* const* outs, int n_outs, const void* const* sources, int n, size_t count) {
  if (n == 2 && n_outs <= 2) {
    T* out0 = static_cast<T*>(outs[0]);
    reduce_pair<T, op>(out0, n_outs == 2 ? static_cast<T*>(outs[1]) : out0, static_cast<const T*>(sources[0]), static_cast<const T*>(sources[1]), count);
  } else {
    reduce_many<T, op>(outs, n_outs, sources, n, count);
  }
}

template <class T>
void reduce_typed(Op op, void* const* outs, int n_outs, const void* const* sources, int n, size_t count) {
  switch (op) {
    case Op::sum:
      return reduce_as<T, Op::sum>(outs, n_outs, sources, n, count);
    case Op::mean:
      return reduce_as<T, Op::mean>(outs, n_outs, sources, n, count);
    case Op::min:
      return reduce_as<T, Op::min>(outs, n_outs, sources, n, count);
    case Op::max:
      return reduce_as<T, Op::max>(outs, n_outs, sources, n, count);
  }
}

void reduce(DType type, Op op, void* const* outs, int n_outs, const void* const* sources, int n, size_t count) {
  switch (type) {
    case DType::f32:
      return reduce_typed<float>(op, outs, n_outs, sources, n, count);
    case DType::f64:
      return reduce_typed<double>(op, outs, n_outs, sources, n, count);
    case DType::f16:
      return reduce_typed<Half>(op, outs, n_outs, sources, n, count);
    case DType::bf16:
      return reduce_typed<Brain>(op, outs, n_outs, sources, n, count);
    case DType::i32:
      return reduce_typed<int32_t>(op, outs, n_outs, sources, n, count);
    case DType::i64:
      return reduce_typed<int64_t>(op, outs, n_outs, sources, n, count);
    case DType::u8:
      return reduce_typed<uint8_t>(op, outs, n_outs, sources, n, count);
  }
}

void accumulate(DType type, void* into, const void* from, size_t count) {
  void* const outs[] = {into};
  const void* const sources[] = {into, from};
  reduce(type, Op::sum, outs, 1, sources, 2, count);
}

// ---- update ----

inline float root(float value) { return __builtin_sqrtf(value); }
inline double root(double value) { return __builtin_sqrt(value); }

/// One block: `g` is the summed gradient, `p` the parameters, `s` and `v` the state. The constants follow libtorch's formulas.
template <class T, Optimizer kind>
inline void update_block(const T* __restrict g, T* __restrict p, T* __restrict s, T* __restrict v, size_t count, const Update& u) {
  const T lr = static_cast<T>(u.lr), decay = static_cast<T>(u.weight_decay), momentum = static_cast<T>(u.momentum);
  const T b1 = static_cast<T>(u.beta1), b2 = static_cast<T>(u.beta2), keep1 = static_cast<T>(1 - u.beta1), keep2 = static_cast<T>(1 - u.beta2);
  const T eps = static_cast<T>(u.epsilon), shrink = static_cast<T>(1 - u.lr * u.weight_decay);
  const T rate = static_cast<T>(u.lr / u.correction1), root2 = static_cast<T>(__builtin_sqrt(u.correction2));
  if constexpr (kind == Optimizer::momentum) {
    if (u.nesterov) {
      for (size_t i = 0; i < count; i++) {
        const T d = g[i] + decay * p[i];
        s[i] = momentum * s[i] + d;
        p[i] -= lr * (d + momentum * s[i]);
      }
      return;
    }
  }
  for (size_t i = 0; i < count; i++) {
    if constexpr (kind == Optimizer::sgd) {
      p[i] -= lr * (g[i] + decay * p[i]);
    } else if constexpr (kind == Optimizer::momentum) {
      s[i] = momentum * s[i] + (g[i] + decay * p[i]);
      p[i] -= lr * s[i];
    } else if constexpr (kind == Optimizer::adagrad) {
      const T d = g[i] + decay * p[i];
      s[i] += d * d;
      p[i] -= lr * d / (root(s[i]) + eps);
    } else {
      if constexpr (kind == Optimizer::adamw) p[i] *= shrink;
      const T d = kind == Optimizer::adam ? g[i] + decay * p[i] : g[i];
      s[i] = b1 * s[i] + keep1 * d;
      v[i] = b2 * v[i] + keep2 * d * d;
      p[i] -= rate * s[i] / (root(v[i]) / root2 + eps);
    }
  }
}

template <class T, Optimizer kind>
void update_as(const Update& u) {
  alignas(64) T acc[kBlock];
  const auto at = [](void* base, size_t begin) { return base == nullptr ? nullptr : static_cast<T*>(base) + begin; };
  for (size_t begin = 0; begin < u.count; begin += kBlock) {
    const size_t size = u.count - begin < kBlock ? u.count - begin : kBlock;
    const T* gradient = static_cast<const T*>(u.gradients[0]) + begin;
    if (u.sources > 1) {
      gather_block<T, Op::sum, T>(acc, u.gradients, u.sources, begin, size);
      gradient = acc;
    }
    update_block<T, kind>(gradient, at(u.parameters, begin), at(u.state[0], begin), at(u.state[1], begin), size, u);
  }
}

template <class T>
void update_typed(const Update& u) {
  switch (u.optimizer) {
    case Optimizer::sgd:
      return update_as<T, Optimizer::sgd>(u);
    case Optimizer::momentum:
      return update_as<T, Optimizer::momentum>(u);
    case Optimizer::adagrad:
      return update_as<T, Optimizer::adagrad>(u);
    case Optimizer::adam:
      return update_as<T, Optimizer::adam>(u);
    case Optimizer::adamw:
      return update_as<T, Optimizer::adamw>(u);
  }
}

void update(const Update& u) { u.dtype == DType::f64 ? update_typed<double>(u) : update_typed<float>(u); }

#define TRIREME_TEXT_OF(x) #x
#define TRIREME_TEXT(x) TRIREME_TEXT_OF(x)

}  // namespace

extern const Kernels kTable;
const Kernels kTable = {TRIREME_TEXT(TRIREME_ISA), reduce, update, accumulate};

}  // namespace trireme::space::TRIREME_ISA
