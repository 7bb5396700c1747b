#pragma once
// A half-open piece of the flat space, in bytes. Buckets, slices and shards are all ranges.
#include <algorithm>
#include <cstddef>

namespace trireme::space {

/// Everything in the flat space starts on a cache line.
constexpr size_t kLine = 64;

struct Range {
  size_t begin = 0;
  size_t end = 0;

  size_t size() const { return end - begin; }
  bool empty() const { return begin >= end; }
  bool operator==(const Range&) const = default;
};

inline Range intersect(Range a, Range b) {
  const size_t begin = std::max(a.begin, b.begin);
  return {begin, std::max(begin, std::min(a.end, b.end))};
}

/// Part `index` of `parts`: contiguous, in order, cut on cache lines (or on multiples of another `grain`) relative to
/// `whole.begin`, sizes within one line of each other.
inline Range part_of(Range whole, int index, int parts, size_t grain = kLine) {
  const size_t lines = (whole.size() + grain - 1) / grain;
  const auto cut = [&](int i) {
    return std::min(whole.end, whole.begin + lines * static_cast<size_t>(i) / static_cast<size_t>(parts) * grain);
  };
  return {cut(index), cut(index + 1)};
}

}  // namespace trireme::space
