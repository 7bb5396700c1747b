// Compiled once per instruction set with TRIREME_ISA = plain, avx2, avx512 (see CMakeLists.txt). Only loops over plain
// memory live here, all in an anonymous namespace: a function template of the standard library, compiled here for
// AVX-512, could otherwise be the copy that the linker keeps for everybody.
#include <immintrin.h>

#include <trireme/space/formula.h>
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

/// acc[i] = op over the sources at [begin, begin + count).
template <class T, Op op, class A>
inline void gather_block(A* __restrict acc, const void* const* sources, int n, size_t begin, size_t count) {
  const T* first = static_cast<const T*>(sources[0]) + begin;
  if (n == 1) {
    for (size_t i = 0; i < count; i++) acc[i] = load(first[i]);
    return;
  }
  const T* second = static_cast<const T*>(sources[1]) + begin;
  for (size_t i = 0; i < count; i++) acc[i] = combine<op, A>(load(first[i]), load(second[i]));
  for (int k = 2; k < n; k++) {
    const T* next = static_cast<const T*>(sources[k]) + begin;
    for (size_t i = 0; i < count; i++) acc[i] = combine<op, A>(acc[i], load(next[i]));
  }
}

/// A sum of four, two by two: one pass.
template <class T>
inline void gather_four(T* __restrict acc, const void* const* sources, size_t begin, size_t count) {
  const auto at = [&](int k) { return static_cast<const T*>(sources[k]) + begin; };
  const T *a = at(0), *b = at(1), *c = at(2), *d = at(3);
  for (size_t i = 0; i < count; i++) acc[i] = (a[i] + b[i]) + (c[i] + d[i]);
}

/// standing[0][i] = the sum over the sources at [begin, begin + count), in the tree that `adds` says.
template <class T>
inline void gather_tree(T (*__restrict standing)[kBlock], const void* const* sources, const uint8_t* adds, int n,
                        size_t begin, size_t count) {
  if (n == 4 && adds[1] == 1 && adds[2] == 0 && adds[3] == 2) return gather_four(standing[0], sources, begin, count);
  int sums = 0;
  for (int k = 0; k < n; k++) {
    const T* from = static_cast<const T*>(sources[k]) + begin;
    int left = adds[k];
    if (sums > 0 && left > 0) {
      T* __restrict last = standing[sums - 1];
      for (size_t i = 0; i < count; i++) last[i] += from[i];
      left--;
    } else if (k + 1 < n && adds[k + 1] > 0) {  // it stands for one turn only: both in one pass
      const T* next = static_cast<const T*>(sources[k + 1]) + begin;
      T* __restrict last = standing[sums++];
      for (size_t i = 0; i < count; i++) last[i] = from[i] + next[i];
      left = adds[++k] - 1;
    } else {
      T* __restrict last = standing[sums++];
      for (size_t i = 0; i < count; i++) last[i] = from[i];
      left = 0;
    }
    for (; left > 0 && sums > 1; left--, sums--) {
      T* __restrict into = standing[sums - 2];
      const T* __restrict last = standing[sums - 1];
      for (size_t i = 0; i < count; i++) into[i] += last[i];
    }
  }
}

/// Sums of a block, in order or in a tree, where they stay in the first-level cache.
template <class T>
struct Sums {
  const T* block(const void* const* sources, const uint8_t* adds, int n, size_t begin, size_t count) {
    if (adds == nullptr || n < 3)
      gather_block<T, Op::sum, T>(standing[0], sources, n, begin, count);
    else
      gather_tree<T>(standing, sources, adds, n, begin, count);
    return standing[0];
  }
  alignas(64) T standing[kMostStanding][kBlock];
};

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
    reduce_pair<T, op>(out0, n_outs == 2 ? static_cast<T*>(outs[1]) : out0, static_cast<const T*>(sources[0]),
                       static_cast<const T*>(sources[1]), count);
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

// ---- norms and checks ----

/// Exponents of ones: NaN and infinity. Whole numbers, as a maximum of floats would lose NaN; signed, as every
/// processor compares many of those at a time.
inline int32_t magnitude(float value) { return __builtin_bit_cast(int32_t, value) & 0x7fffffff; }
inline int64_t magnitude(double value) { return __builtin_bit_cast(int64_t, value) & 0x7fffffffffffffff; }
constexpr bool is_finite(int32_t most) { return most < 0x7f800000; }
constexpr bool is_finite(int64_t most) { return most < 0x7ff0000000000000; }

template <class T, class Value>
inline bool all_finite(size_t count, const Value& value) {
  decltype(magnitude(T{})) most = 0;
  for (size_t i = 0; i < count; i++) {
    const auto here = magnitude(value(i));
    most = most < here ? here : most;
  }
  return is_finite(most);
}

/// In a fixed number of sums, so that all variants give the same bits.
template <class T>
inline double squares_of(const T* values, size_t count) {
  constexpr size_t kSums = 32;
  double sums[kSums] = {};
  size_t i = 0;
  for (; i + kSums <= count; i += kSums)
    for (size_t k = 0; k < kSums; k++)
      sums[k] += static_cast<double>(values[i + k]) * static_cast<double>(values[i + k]);
  for (size_t k = 0; i + k < count; k++)
    sums[k] += static_cast<double>(values[i + k]) * static_cast<double>(values[i + k]);
  for (size_t width = kSums / 2; width > 0; width /= 2)
    for (size_t k = 0; k < width; k++) sums[k] += sums[k + width];
  return sums[0];
}

template <class T>
double sum_squares_as(T* out, const void* const* sources, const uint8_t* adds, int n, size_t count) {
  Sums<T> sums;
  double sum = 0;
  for (size_t begin = 0; begin < count; begin += kBlock) {
    const size_t size = count - begin < kBlock ? count - begin : kBlock;
    const T* block = static_cast<const T*>(sources[0]) + begin;
    if (n > 1) block = sums.block(sources, adds, n, begin, size);
    const double squares = squares_of(block, size);
    sum += squares;
    if (out != nullptr && block != out + begin && __builtin_isfinite(squares))
      for (size_t i = 0; i < size; i++) out[begin + i] = block[i];
  }
  return sum;
}

double sum_squares(DType type, void* out, const void* const* sources, const uint8_t* adds, int n, size_t count) {
  return type == DType::f64 ? sum_squares_as(static_cast<double*>(out), sources, adds, n, count)
                            : sum_squares_as(static_cast<float*>(out), sources, adds, n, count);
}

template <class T>
void sum_tree_as(T* out, const void* const* sources, const uint8_t* adds, int n, size_t count) {
  Sums<T> sums;
  for (size_t begin = 0; begin < count; begin += kBlock) {
    const size_t size = count - begin < kBlock ? count - begin : kBlock;
    const T* block = sums.block(sources, adds, n, begin, size);
    for (size_t i = 0; i < size; i++) out[begin + i] = block[i];
  }
}

void sum_tree(DType type, void* out, const void* const* sources, const uint8_t* adds, int n, size_t count) {
  type == DType::f64 ? sum_tree_as(static_cast<double*>(out), sources, adds, n, count)
                     : sum_tree_as(static_cast<float*>(out), sources, adds, n, count);
}

template <class T>
void scale_as(T* data, T factor, size_t count) {
  for (size_t i = 0; i < count; i++) data[i] *= factor;
}

void scale(DType type, void* data, double factor, size_t count) {
  type == DType::f64 ? scale_as(static_cast<double*>(data), factor, count)
                     : scale_as(static_cast<float*>(data), static_cast<float>(factor), count);
}

bool finite(DType type, const void* data, size_t count) {
  const auto as = [&]<class T>(const T* values) { return all_finite<T>(count, [=](size_t i) { return values[i]; }); };
  return type == DType::f64 ? as(static_cast<const double*>(data)) : as(static_cast<const float*>(data));
}

// ---- update ----

// Stores past the caches. An ordinary store to a line that another core has read must first take the line away from
// that core, which costs more than the rest of an update.
#if defined(__AVX512F__)
using Wide = __m512i;
inline void stream(Wide* to, const Wide* from) { _mm512_stream_si512(to, _mm512_load_si512(from)); }
#elif defined(__AVX2__)
using Wide = __m256i;
inline void stream(Wide* to, const Wide* from) { _mm256_stream_si256(to, _mm256_load_si256(from)); }
#else
using Wide = __m128i;
inline void stream(Wide* to, const Wide* from) { _mm_stream_si128(to, _mm_load_si128(from)); }
#endif

constexpr size_t kLineBytes = 64;

/// `first` and, of a pair, `second` are gradients.
template <bool pair, class T, class F>
inline void update_span(const T* __restrict first, const T* __restrict second, T* __restrict p, T* __restrict s,
                        T* __restrict v, size_t count, const F formula, bool past_caches) {
  const auto gradient = [=](size_t i) { return pair ? first[i] + second[i] : first[i]; };
  constexpr size_t line = kLineBytes / sizeof(T);
  size_t done = 0;
  const auto update_to = [&](size_t end) {
    for (size_t i = done; i < end; i++) p[i] = formula(gradient(i), p[i], s + i, v + i);
    done = end;
  };
  if (past_caches) {
    const size_t before = -reinterpret_cast<uintptr_t>(p) % kLineBytes / sizeof(T);  // the first whole line
    update_to(before < count ? before : count);
    for (; done + line <= count; done += line) {
      alignas(kLineBytes) T fresh[line];
      for (size_t i = 0; i < line; i++) fresh[i] = formula(gradient(done + i), p[done + i], s + done + i, v + done + i);
      for (size_t i = 0; i < kLineBytes / sizeof(Wide); i++)
        stream(reinterpret_cast<Wide*>(p + done) + i, reinterpret_cast<const Wide*>(fresh) + i);
    }
  }
  update_to(count);
}

/// Where an update works: parameters and state, from an element on.
template <class T>
struct Home {
  explicit Home(const Update& u) : p(static_cast<T*>(u.parameters)), s(or_any(u.state[0])), v(or_any(u.state[1])) {}
  T* or_any(void* state) const {
    return state != nullptr ? static_cast<T*>(state) : p;
  }  // a formula without it leaves it alone
  T *p, *s, *v;
};

template <bool pair, class T, class F>
inline void update_home(const T* first, const T* second, const Home<T>& home, size_t at, size_t count, const F& formula,
                        bool stream) {
  update_span<pair>(first, second, home.p + at, home.s + at, home.v + at, count, formula, stream);
}

/// One or two gradients, read where they lie: block by block only if they are watched.
template <bool pair, class T, class F>
bool update_direct(const Update& u, const F& formula) {
  const Home<T> home(u);
  const T *first = static_cast<const T*>(u.gradients[0]), *second = static_cast<const T*>(u.gradients[pair ? 1 : 0]);
  if (!u.watch) return update_home<pair>(first, second, home, 0, u.count, formula, u.stream), true;
  bool fine = true;
  for (size_t at = 0; at < u.count; at += kBlock) {
    const size_t size = u.count - at < kBlock ? u.count - at : kBlock;
    const T *a = first + at, *b = second + at;
    if (all_finite<T>(size, [=](size_t i) { return pair ? a[i] + b[i] : a[i]; }))
      update_home<pair>(a, b, home, at, size, formula, u.stream);
    else
      fine = false;
  }
  return fine;
}

/// More gradients, or a sum that is scaled: block by block, with the sum in between.
template <class T, class F>
bool update_summed(const Update& u, const F& formula) {
  const Home<T> home(u);
  Sums<T> sums;
  T* const acc = sums.standing[0];
  bool fine = true;
  for (size_t at = 0; at < u.count; at += kBlock) {
    const size_t size = u.count - at < kBlock ? u.count - at : kBlock;
    sums.block(u.gradients, u.adds, u.sources, at, size);
    if (u.scale != 1) scale_as(acc, static_cast<T>(u.scale), size);
    if (!u.watch || all_finite<T>(size, [&](size_t i) { return acc[i]; }))
      update_home<false>(acc, acc, home, at, size, formula, u.stream);
    else
      fine = false;
  }
  return fine;
}

template <class T, class F>
bool update_with(const Update& u) {
  const F formula(u);
  if (u.sources > 2 || u.scale != 1) return update_summed<T>(u, formula);
  return u.sources == 2 ? update_direct<true, T>(u, formula) : update_direct<false, T>(u, formula);
}

template <class T>
bool update_typed(const Update& u) {
  switch (u.optimizer) {
    case Optimizer::sgd:
      return update_with<T, Formula<T, Optimizer::sgd, false>>(u);
    case Optimizer::momentum:
      return u.nesterov ? update_with<T, Formula<T, Optimizer::momentum, true>>(u)
                        : update_with<T, Formula<T, Optimizer::momentum, false>>(u);
    case Optimizer::adagrad:
      return update_with<T, Formula<T, Optimizer::adagrad, false>>(u);
    case Optimizer::adam:
      return update_with<T, Formula<T, Optimizer::adam, false>>(u);
    case Optimizer::adamw:
      return update_with<T, Formula<T, Optimizer::adamw, false>>(u);
  }
  return true;
}

bool update(const Update& u) {
  const bool fine = u.dtype == DType::f64 ? update_typed<double>(u) : update_typed<float>(u);
  if (u.stream) _mm_sfence();
  return fine;
}

#define TRIREME_TEXT_OF(x) #x
#define TRIREME_TEXT(x) TRIREME_TEXT_OF(x)

}  // namespace

extern const Kernels kTable;
const Kernels kTable = {TRIREME_TEXT(TRIREME_ISA), reduce, update, accumulate, sum_squares, sum_tree, scale, finite};

}  // namespace trireme::space::TRIREME_ISA
