// Compiled once per instruction set with TRIREME_ISA = plain, avx2, avx512 (see CMakeLists.txt), without contraction.
// Only loops over plain memory live here, all in an anonymous namespace, as in space/kernels.cpp.
#include <immintrin.h>

#include <trireme/compress/kernels.h>

namespace trireme::compress::TRIREME_ISA {
namespace {

inline uint32_t bits_of(float value) { return __builtin_bit_cast(uint32_t, value); }
inline float float_of(uint32_t bits) { return __builtin_bit_cast(float, bits); }
constexpr uint32_t kSign = 0x80000000u, kRest = 0x7fffffffu;

/// Signed, as every processor compares many of those at a time.
inline int32_t larger(int32_t a, int32_t b) { return a < b ? b : a; }
inline int32_t magnitude(float value) { return static_cast<int32_t>(bits_of(value) & kRest); }

// ---- 16-bit floats ----

inline uint16_t half_of(uint32_t bits) {
  const uint32_t rest = bits & kRest, sign = (bits >> 16) & 0x8000u;
  const uint32_t normal = (rest - 0x38000000u + 0x0fffu + ((rest >> 13) & 1u)) >> 13;
  const uint32_t small = bits_of(float_of(rest) + 0.5f) - 0x3f000000u;  // the addition rounds to a multiple of 2⁻²⁴
  const uint32_t value = rest >= 0x477fe000u ? 0x7bffu : rest >= 0x38800000u ? normal : small;
  return static_cast<uint16_t>(value | sign);
}

inline float half_value(uint16_t bits) {
  const uint32_t sign = static_cast<uint32_t>(bits & 0x8000u) << 16, rest = bits & 0x7fffu;
  const float normal = float_of((rest << 13) + 0x38000000u);
  const float infinite = float_of((rest << 13) | 0x7f800000u);
  const float small = static_cast<float>(static_cast<int32_t>(rest)) * 0x1p-24f;
  const float value = rest >= 0x7c00u ? infinite : rest >= 0x0400u ? normal : small;
  return float_of(bits_of(value) | sign);
}

inline uint16_t brain_of(uint32_t bits) {
  const uint32_t rest = bits & kRest, rounded = (rest + 0x7fffu + ((rest >> 16) & 1u)) >> 16;
  return static_cast<uint16_t>((rounded >= 0x7f80u ? 0x7f7fu : rounded) | ((bits >> 16) & 0x8000u));
}

Magnitude to_half(const float* __restrict from, uint16_t* __restrict to, size_t count) {
  int32_t most = 0;
  for (size_t i = 0; i < count; i++) {
    to[i] = half_of(bits_of(from[i]));
    most = larger(most, magnitude(from[i]));
  }
  return static_cast<Magnitude>(most);
}

Magnitude to_brain(const float* __restrict from, uint16_t* __restrict to, size_t count) {
  int32_t most = 0;
  for (size_t i = 0; i < count; i++) {
    to[i] = brain_of(bits_of(from[i]));
    most = larger(most, magnitude(from[i]));
  }
  return static_cast<Magnitude>(most);
}

void add_half(const uint16_t* __restrict from, float* __restrict into, size_t count) {
  for (size_t i = 0; i < count; i++) into[i] += half_value(from[i]);
}

void add_brain(const uint16_t* __restrict from, float* __restrict into, size_t count) {
  for (size_t i = 0; i < count; i++) into[i] += float_of(static_cast<uint32_t>(from[i]) << 16);
}

// ---- eight bits ----

Magnitude most(const float* from, size_t count) {
  int32_t found = 0;
  for (size_t i = 0; i < count; i++) found = larger(found, magnitude(from[i]));
  return static_cast<Magnitude>(found);
}

inline uint32_t next(uint32_t x) {  // xorshift
  x ^= x << 13;
  x ^= x >> 17;
  return x ^ (x << 5);
}

/// With 16 bits of chance: a whole number plus the most of them is not rounded up to the next.
inline int8_t rounded(float value, uint32_t chance) {
  const float raised = value + static_cast<float>(static_cast<int32_t>(chance >> 16)) * 0x1p-16f;
  int32_t whole = static_cast<int32_t>(raised);
  whole -= static_cast<float>(whole) > raised ? 1 : 0;
  whole = whole > 127 ? 127 : whole;
  return static_cast<int8_t>(whole < -127 ? -127 : whole);
}

void quantize(const float* __restrict from, int8_t* __restrict to, size_t count, float inverse, uint32_t* streams) {
  uint32_t state[kStreams];
  for (size_t k = 0; k < kStreams; k++) state[k] = streams[k];
  size_t i = 0;
  for (; i + kStreams <= count; i += kStreams)
    for (size_t k = 0; k < kStreams; k++) {
      state[k] = next(state[k]);
      to[i + k] = rounded(from[i + k] * inverse, state[k]);
    }
  for (size_t k = 0; i + k < count; k++) {
    state[k] = next(state[k]);
    to[i + k] = rounded(from[i + k] * inverse, state[k]);
  }
  for (size_t k = 0; k < kStreams; k++) streams[k] = state[k];
}

void add_scaled(const int8_t* __restrict from, float* __restrict into, size_t count, float scale) {
  for (size_t i = 0; i < count; i++) into[i] += static_cast<float>(from[i]) * scale;
}

// ---- sums ----

constexpr size_t kSums = 32;

template <class T>
inline T total(T* sums, size_t count = kSums) {
  for (size_t width = count / 2; width > 0; width /= 2)
    for (size_t k = 0; k < width; k++) sums[k] += sums[k + width];
  return sums[0];
}

/// Eight at a time: GCC keeps these in registers, and makes two or four of one where vectors are shorter.
using Floats = float __attribute__((vector_size(32)));
using Bits = int32_t __attribute__((vector_size(32)));
using Doubles = double __attribute__((vector_size(64)));

constexpr size_t kEach = 8;

/// By reference: how functions return these depends on the instruction set.
inline void load(const float* from, Floats& values) { __builtin_memcpy(&values, from, sizeof values); }
inline void add_to(Doubles& sums, const Floats& values) { sums += __builtin_convertvector(values, Doubles); }

double sum_magnitudes(const float* from, size_t count) {
  constexpr size_t kVectors = kSums / kEach;
  Doubles sums[kVectors] = {};
  size_t i = 0;
  for (; i + kSums <= count; i += kSums)
    for (size_t k = 0; k < kVectors; k++) {
      Floats values;
      load(from + i + k * kEach, values);
      add_to(sums[k], (Floats)((Bits)values & 0x7fffffff));
    }
  double all[kSums];
  __builtin_memcpy(all, sums, sizeof all);
  for (size_t k = 0; i + k < count; k++) all[k] += static_cast<double>(float_of(bits_of(from[i + k]) & kRest));
  return total(all);
}

// ---- signs ----

inline __m128i four(const float* from) { return _mm_castps_si128(_mm_loadu_ps(from)); }

/// Saturation keeps signs, so that sixteen of them end up in as many bytes.
void pack_signs(const float* from, uint8_t* to, size_t count) {
  size_t i = 0;
  for (; i + 16 <= count; i += 16) {
    const __m128i low = _mm_packs_epi32(four(from + i), four(from + i + 4));
    const __m128i high = _mm_packs_epi32(four(from + i + 8), four(from + i + 12));
    const int bits = _mm_movemask_epi8(_mm_packs_epi16(low, high));
    to[i / 8] = static_cast<uint8_t>(bits);
    to[i / 8 + 1] = static_cast<uint8_t>(bits >> 8);
  }
  for (; i < count; i += 8) {
    uint32_t bits = 0;
    for (size_t k = 0; k < 8 && i + k < count; k++) bits |= (bits_of(from[i + k]) >> 31) << k;
    to[i / 8] = static_cast<uint8_t>(bits);
  }
}

void add_signs(const uint8_t* __restrict from, float* __restrict into, size_t count, float scale) {
  constexpr size_t kWord = 32;
  alignas(64) uint32_t masks[kWord];
  for (size_t k = 0; k < kWord; k++) masks[k] = 1u << k;
  const uint32_t bits = bits_of(scale);
  size_t i = 0;
  for (; i + kWord <= count; i += kWord) {
    uint32_t word;
    __builtin_memcpy(&word, from + i / 8, sizeof word);
    for (size_t k = 0; k < kWord; k++) into[i + k] += float_of(bits ^ ((word & masks[k]) != 0 ? kSign : 0u));
  }
  for (; i < count; i++) into[i] += float_of(bits ^ (((from[i / 8] >> (i % 8)) & 1u) != 0 ? kSign : 0u));
}

// ---- the largest ----

size_t collect(const float* from, size_t count, Magnitude least, uint32_t* to) {
  const __m128i rest = _mm_set1_epi32(0x7fffffff), below = _mm_set1_epi32(static_cast<int32_t>(least) - 1);
  const auto above = [&](const float* at) { return _mm_cmpgt_epi32(_mm_and_si128(four(at), rest), below); };
  size_t found = 0, i = 0;
  for (; i + 16 <= count; i += 16) {
    const __m128i low = _mm_packs_epi32(above(from + i), above(from + i + 4));
    const __m128i high = _mm_packs_epi32(above(from + i + 8), above(from + i + 12));
    auto bits = static_cast<uint32_t>(_mm_movemask_epi8(_mm_packs_epi16(low, high)));
    for (; bits != 0; bits &= bits - 1)
      to[found++] = static_cast<uint32_t>(i) + static_cast<uint32_t>(__builtin_ctz(bits));
  }
  for (; i < count; i++)
    if (static_cast<Magnitude>(magnitude(from[i])) >= least) to[found++] = static_cast<uint32_t>(i);
  return found;
}

// ---- residuals ----

Magnitude add(const float* a, const float* b, float* __restrict out, size_t count) {
  int32_t most = 0;
  for (size_t i = 0; i < count; i++) {
    out[i] = a[i] + b[i];
    most = larger(most, magnitude(out[i]));
  }
  return static_cast<Magnitude>(most);
}

/// Eight sums of each kind; in the last few elements the first ones.
Totals keep(const float* given, const float* wanted, const float* sent, const float* before, float* after,
            size_t count) {
  Doubles given_sums = {}, sent_sums = {}, kept_sums = {};
  size_t i = 0;
  for (; i + kEach <= count; i += kEach) {
    Floats in, out, left, old;
    load(given + i, in), load(sent + i, out), load(wanted + i, left), load(before + i, old);
    left -= out;
    add_to(given_sums, in), add_to(sent_sums, out);
    kept_sums += __builtin_convertvector(left, Doubles) - __builtin_convertvector(old, Doubles);
    __builtin_memcpy(after + i, &left, sizeof left);
  }
  double sums[3][kEach];
  __builtin_memcpy(sums[0], &given_sums, sizeof given_sums);
  __builtin_memcpy(sums[1], &sent_sums, sizeof sent_sums);
  __builtin_memcpy(sums[2], &kept_sums, sizeof kept_sums);
  for (size_t k = 0; i + k < count; k++) {
    const float left = wanted[i + k] - sent[i + k];
    sums[0][k] += static_cast<double>(given[i + k]);
    sums[1][k] += static_cast<double>(sent[i + k]);
    sums[2][k] += static_cast<double>(left) - static_cast<double>(before[i + k]);
    after[i + k] = left;
  }
  return {total(sums[0], kEach), total(sums[1], kEach), total(sums[2], kEach)};
}

// ---- matrices ----

inline float dot(const float* a, const float* b, size_t count) {
  float sums[kSums] = {};
  size_t i = 0;
  for (; i + kSums <= count; i += kSums)
    for (size_t k = 0; k < kSums; k++) sums[k] += a[i + k] * b[i + k];
  for (size_t k = 0; i + k < count; k++) sums[k] += a[i + k] * b[i + k];
  return total(sums);
}

void times(const float* m, size_t rows, size_t columns, const float* q, int rank, float* p) {
  for (size_t row = 0; row < rows; row++)
    for (int k = 0; k < rank; k++)
      p[static_cast<size_t>(k) * rows + row] = dot(m + row * columns, q + static_cast<size_t>(k) * columns, columns);
}

/// Four rows at a time, so that q is read and written less often.
void transposed_times(const float* m, size_t rows, size_t columns, const float* p, int rank, float* q) {
  for (size_t i = 0; i < static_cast<size_t>(rank) * columns; i++) q[i] = 0;
  for (size_t row = 0; row < rows; row += 4)
    for (int k = 0; k < rank; k++) {
      float* __restrict out = q + static_cast<size_t>(k) * columns;
      const float *factor = p + static_cast<size_t>(k) * rows + row, *a = m + row * columns;
      if (row + 4 <= rows) {
        const float *b = a + columns, *c = b + columns, *d = c + columns;
        const float fa = factor[0], fb = factor[1], fc = factor[2], fd = factor[3];
        for (size_t i = 0; i < columns; i++) out[i] += (fa * a[i] + fb * b[i]) + (fc * c[i] + fd * d[i]);
      } else {
        for (size_t left = 0; left < rows - row; left++)
          for (size_t i = 0; i < columns; i++) out[i] += factor[left] * a[left * columns + i];
      }
    }
}

void add_product(const float* p, const float* q, size_t rows, size_t columns, int rank, float* into) {
  for (size_t row = 0; row < rows; row++)
    for (int k = 0; k < rank; k++) {
      const float factor = p[static_cast<size_t>(k) * rows + row];
      const float* from = q + static_cast<size_t>(k) * columns;
      float* __restrict out = into + row * columns;
      for (size_t i = 0; i < columns; i++) out[i] += factor * from[i];
    }
}

#define TRIREME_TEXT_OF(x) #x
#define TRIREME_TEXT(x) TRIREME_TEXT_OF(x)

}  // namespace

extern const Kernels kTable;
const Kernels kTable = {TRIREME_TEXT(TRIREME_ISA),
                        to_half,
                        to_brain,
                        add_half,
                        add_brain,
                        most,
                        quantize,
                        add_scaled,
                        sum_magnitudes,
                        pack_signs,
                        add_signs,
                        collect,
                        add,
                        keep,
                        times,
                        transposed_times,
                        add_product};

}  // namespace trireme::compress::TRIREME_ISA
