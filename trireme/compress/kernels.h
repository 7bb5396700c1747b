#pragma once
// The inner loops of codecs, compiled once per instruction set and picked at run time, as space/kernels.h does it: all
// variants give the same bits. Sums run in a fixed number of parts.
#include <cstddef>
#include <cstdint>
#include <vector>

namespace trireme::compress {

/// The bits of a float without its sign: they order finite values by size, and infinity and NaN are above those.
using Magnitude = uint32_t;
constexpr bool is_finite(Magnitude most) { return most < 0x7f800000u; }

/// Independent streams of chance: quantize() draws element i from stream i % kStreams.
constexpr size_t kStreams = 32;

/// Sums over elements, in f64.
struct Totals {
  double given = 0, sent = 0, kept = 0;
};

struct Kernels {
  const char* name;
  /// To nearest, ties to even; what is too large becomes the largest finite value. Returns the largest magnitude.
  Magnitude (*to_half)(const float* from, uint16_t* to, size_t count);
  Magnitude (*to_brain)(const float* from, uint16_t* to, size_t count);
  /// into[i] += from[i]
  void (*add_half)(const uint16_t* from, float* into, size_t count);
  void (*add_brain)(const uint16_t* from, float* into, size_t count);
  Magnitude (*most)(const float* from, size_t count);
  /// to[i] = from[i] × inverse, rounded up or down by chance, so that the mean is right; within [-127, 127].
  void (*quantize)(const float* from, int8_t* to, size_t count, float inverse, uint32_t* streams);
  /// into[i] += from[i] × scale
  void (*add_scaled)(const int8_t* from, float* into, size_t count, float scale);
  double (*sum_magnitudes)(const float* from, size_t count);
  /// A bit for each element: it is negative. Writes (count + 7) / 8 bytes.
  void (*pack_signs)(const float* from, uint8_t* to, size_t count);
  /// into[i] += scale, or −scale where its bit is set
  void (*add_signs)(const uint8_t* from, float* into, size_t count, float scale);
  /// Where magnitudes are at least `least`, in order. `to` has room for `count`. Returns how many.
  size_t (*collect)(const float* from, size_t count, Magnitude least, uint32_t* to);
  /// out[i] = a[i] + b[i]; the largest magnitude
  Magnitude (*add)(const float* a, const float* b, float* out, size_t count);
  /// after[i] = wanted[i] − sent[i], which may lie where `before` does. Sums of what was given, of what was sent, and
  /// by how much more is kept than before.
  Totals (*keep)(const float* given, const float* wanted, const float* sent, const float* before, float* after,
                 size_t count);
  /// p = M q, of a matrix in rows; `rank` vectors of `columns` become as many of `rows`.
  void (*times)(const float* m, size_t rows, size_t columns, const float* q, int rank, float* p);
  /// q = Mᵀ p
  void (*transposed_times)(const float* m, size_t rows, size_t columns, const float* p, int rank, float* q);
  /// into += p qᵀ
  void (*add_product)(const float* p, const float* q, size_t rows, size_t columns, int rank, float* into);
};

/// The best variant that this processor runs.
const Kernels& kernels();
/// All variants that this processor runs, best first; "plain" is always last.
std::vector<const Kernels*> runnable_kernels();

}  // namespace trireme::compress
