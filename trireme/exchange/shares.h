#pragma once
// Who owns what, where ranks of several machines divide a model among them (ZeRO).
//
// A bucket is cut into a *slice* per lane, and each slice into a *part* per machine: rank (machine m, lane l) owns part
// m of slice l. Cuts are between pages of the flat vector, so that what a machine does not own is whole pages, which
// can be given back to it. Pure functions: the same on all ranks.
#include <algorithm>
#include <vector>

#include <trireme/base/segment.h>
#include <trireme/space/range.h>

namespace trireme::exchange {

/// The pages that lie inside.
inline space::Range whole_pages(space::Range range) {
  const size_t begin = round_up(range.begin, kPage);
  return {begin, std::max(begin, range.end / kPage * kPage)};
}

/// Part `index` of `parts`: contiguous, in order, cut where a page begins, sizes within a page of each other.
inline space::Range paged_part(space::Range whole, int index, int parts) {
  const auto cut = [&](int i) {
    if (i == parts) return whole.end;
    const size_t at = whole.begin + whole.size() * static_cast<size_t>(i) / static_cast<size_t>(parts);
    return std::clamp((at + kPage / 2) / kPage * kPage, whole.begin, whole.end);
  };
  return {index == 0 ? whole.begin : cut(index), cut(index + 1)};
}

struct Shares {
  int lanes = 1, machines = 1;

  space::Range slice(space::Range bucket, int lane) const {
    return lane < lanes ? paged_part(bucket, lane, lanes) : space::Range{};
  }
  space::Range part(space::Range bucket, int lane, int machine) const {
    return lane < lanes ? paged_part(slice(bucket, lane), machine, machines) : space::Range{};
  }
  /// How many elements of a slice are whose, by machine.
  std::vector<size_t> counts(space::Range bucket, int lane, size_t width) const {
    std::vector<size_t> counts;
    for (int m = 0; m < machines; m++) counts.push_back(part(bucket, lane, m).size() / width);
    return counts;
  }
  /// What the machine that owns least of a bucket has to gather of it. The same on all machines, as decisions that
  /// depend on it must be.
  size_t foreign_bytes(space::Range bucket) const {
    size_t most = 0;
    for (int m = 0; m < machines; m++) {
      size_t bytes = bucket.size();
      for (int lane = 0; lane < lanes; lane++) bytes -= part(bucket, lane, m).size();
      most = std::max(most, bytes);
    }
    return most;
  }
  /// The pages of a slice in which this machine owns nothing.
  std::vector<space::Range> foreign_pages(space::Range bucket, int lane, int machine) const {
    const space::Range all = slice(bucket, lane), own = part(bucket, lane, machine);
    std::vector<space::Range> pages;
    for (const space::Range& side : {space::Range{all.begin, own.begin}, space::Range{own.end, all.end}})
      if (const space::Range inside = whole_pages(side); !inside.empty()) pages.push_back(inside);
    return pages;
  }
};

}  // namespace trireme::exchange
