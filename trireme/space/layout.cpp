#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <sstream>

#include <trireme/base/error.h>
#include <trireme/space/layout.h>

namespace trireme::space {

size_t Slot::elements() const {
  size_t count = 1;
  for (int64_t extent : shape) count *= static_cast<size_t>(extent);
  return count;
}

std::string Slot::describe() const {
  const std::string part =
      cut ? fmt::format(", part {} of {} of [{}]", cut->index, cut->count, fmt::join(cut->whole, ",")) : "";
  return fmt::format("{} {}[{}]{}{}", name, name_of(dtype), fmt::join(shape, ","),
                     channels_last ? " channels-last" : "", part);
}

namespace {

/// A part that cannot be one would be looked for in the wrong place.
void check_cut(const Slot& slot) {
  const Cut& cut = *slot.cut;
  const auto dim = static_cast<size_t>(cut.dim);
  bool fits = cut.dim >= 0 && dim < slot.shape.size() && cut.whole.size() == slot.shape.size() && cut.count > 0 &&
              cut.index >= 0 && cut.index < cut.count;
  for (size_t i = 0; fits && i < slot.shape.size(); i++)
    fits = cut.whole[i] == slot.shape[i] * (i == dim ? cut.count : 1);
  if (!fits) fail<InvalidArgument>("parameter {}: this is no part of it along dim {}", slot.describe(), cut.dim);
  if (slot.channels_last)
    fail<InvalidArgument>("parameter {} is a part of a tensor and stored channels-last: choose one of the two",
                          slot.describe());
}

}  // namespace

Layout::Layout(std::vector<Slot> slots) : slots_(std::move(slots)) {
  for (Slot& slot : slots_) {
    for (int64_t extent : slot.shape)
      if (extent < 0) fail<InvalidArgument>("parameter {} has a negative extent", slot.describe());
    if (slot.cut) check_cut(slot);
    const size_t bytes = slot.elements() * size_of(slot.dtype);
    slot.range = {bytes_, bytes_ + bytes};
    bytes_ += (bytes + kLine - 1) / kLine * kLine;
  }
}

size_t Layout::elements() const {
  size_t count = 0;
  for (const Slot& slot : slots_) count += slot.elements();
  return count;
}

uint64_t Layout::fingerprint() const { return hash_text(describe()); }

std::string Layout::describe() const {
  std::string text;
  for (const Slot& slot : slots_) text += slot.describe() + '\n';
  return text;
}

Layout whole_of(const Layout& layout) {
  std::vector<Slot> slots(layout.slots().begin(), layout.slots().end());
  for (Slot& slot : slots) {
    if (slot.cut) slot.shape = slot.cut->whole;
    slot.cut.reset();
  }
  return Layout(std::move(slots));
}

std::string first_difference(const std::string& mine, int my_rank, const std::string& theirs, int their_rank) {
  std::istringstream left(mine), right(theirs);
  for (size_t index = 0;; index++) {
    std::string a, b;
    const bool more_a = static_cast<bool>(std::getline(left, a)), more_b = static_cast<bool>(std::getline(right, b));
    if (!more_a && !more_b) return "";
    if (a == b) continue;
    return fmt::format("parameter {}: rank {} has '{}', rank {} has '{}'", index, my_rank,
                       more_a ? a : "no such parameter", their_rank, more_b ? b : "no such parameter");
  }
}

std::vector<Bucket> plan_buckets(const Layout& layout, size_t bytes) {
  std::vector<Bucket> buckets;
  for (size_t next = layout.size(); next > 0;) {
    Bucket bucket{next - 1, next, {}, layout[next - 1].dtype, {}};
    const size_t end = layout[next - 1].range.end;
    while (bucket.first > 0 && end - layout[bucket.first].range.begin < bytes &&
           layout[bucket.first - 1].dtype == bucket.dtype)
      bucket.first--;
    bucket.range = {layout[bucket.first].range.begin, end};
    bucket.name = layout[bucket.first].name;
    if (bucket.last - bucket.first > 1) bucket.name += " to " + layout[bucket.last - 1].name;
    next = bucket.first;
    buckets.push_back(std::move(bucket));
  }
  return buckets;
}

uint64_t hash_text(std::string_view text) {
  uint64_t hash = 0xcbf29ce484222325;
  for (char c : text) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3;
  return hash;
}

}  // namespace trireme::space
