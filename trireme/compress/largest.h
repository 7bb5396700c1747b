#pragma once
// The k elements of the largest magnitude, exactly k. Not installed.
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace trireme::compress {

/// Keeps its memory from call to call.
class Largest {
 public:
  /// Indices in their order; of equal magnitudes the first ones. Valid until the next call. A threshold is estimated
  /// from a sample, a little too low; what reaches it is searched exactly. Values are finite.
  std::span<const uint32_t> find(const float* values, size_t count, size_t k);

 private:
  uint32_t estimate(const float* values, size_t count, size_t k);
  std::vector<uint32_t> sample_, found_, order_;
};

}  // namespace trireme::compress
