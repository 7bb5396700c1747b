#include <algorithm>
#include <cmath>
#include <functional>

#include <trireme/compress/kernels.h>
#include <trireme/compress/largest.h>

namespace trireme::compress {
namespace {

constexpr size_t kSample = 4096;

Magnitude magnitude_of(float value) { return __builtin_bit_cast(uint32_t, value) & 0x7fffffffu; }

}  // namespace

/// Of the sample's elements that would be kept, a few more: three deviations of how many there are.
uint32_t Largest::estimate(const float* values, size_t count, size_t k) {
  const size_t taken = std::min(count, kSample);
  sample_.resize(taken);
  for (size_t i = 0; i < taken; i++) sample_[i] = magnitude_of(values[i * count / taken]);
  const double expected = static_cast<double>(k) * static_cast<double>(taken) / static_cast<double>(count);
  const auto rank = static_cast<size_t>(expected + 3 * std::sqrt(expected) + 3);
  if (taken == count || rank >= taken) return 0;
  std::nth_element(sample_.begin(), sample_.begin() + static_cast<ptrdiff_t>(rank), sample_.end(), std::greater<>());
  return sample_[rank];
}

std::span<const uint32_t> Largest::find(const float* values, size_t count, size_t k) {
  if (found_.size() < count) found_.resize(count);
  Magnitude least = estimate(values, count, k);
  size_t found = kernels().collect(values, count, least, found_.data());
  while (found < k) {  // a sample that was not like the rest: a quarter of the threshold, in the end none
    least = least > 0x01000000u ? least - 0x01000000u : 0;
    found = kernels().collect(values, count, least, found_.data());
  }
  if (found == k) return {found_.data(), k};
  order_.resize(found);
  for (size_t i = 0; i < found; i++) order_[i] = magnitude_of(values[found_[i]]);
  std::nth_element(order_.begin(), order_.begin() + static_cast<ptrdiff_t>(k - 1), order_.end(), std::greater<>());
  const Magnitude edge = order_[k - 1];
  auto ties = k - static_cast<size_t>(std::count_if(order_.begin(), order_.begin() + static_cast<ptrdiff_t>(k),
                                                    [&](Magnitude one) { return one > edge; }));
  size_t kept = 0;
  for (size_t i = 0; i < found; i++) {
    const Magnitude here = magnitude_of(values[found_[i]]);
    if (here < edge || (here == edge && ties == 0)) continue;
    if (here == edge) ties--;
    found_[kept++] = found_[i];
  }
  return {found_.data(), kept};
}

}  // namespace trireme::compress
