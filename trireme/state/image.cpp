#include <algorithm>
#include <cstring>

#include <trireme/base/error.h>
#include <trireme/state/image.h>

namespace trireme::state {

using space::Range;

void Image::about(const About& about) {
  if (known_) check(*this, {.who = "who shows more", .about = about});
  about_ = about;
  known_ = true;
}

void Image::part(const std::string& vector, Range range, std::span<const std::byte> bytes) {
  if (range.size() != bytes.size())
    fail<InvalidArgument>("{} bytes for {} to {} of '{}'", bytes.size(), range.begin, range.end, vector);
  contents_.add(vector, range, 0);
  if (!range.empty()) vectors_[vector][range.begin].assign(bytes.begin(), bytes.end());
}

void Image::scalar(const std::string& name, int64_t value) {
  const auto [found, added] = scalars_.emplace(name, value);
  if (!added && found->second != value)
    fail<InvalidArgument>("'{}' was shown as {} and as {}: its owners disagree", name, found->second, value);
}

void Image::row(const std::string& table, const Row& row) {
  Kept kept{.width = row.values.size(), .steps = row.steps, .age = row.age};
  kept.floats.assign(row.values.begin(), row.values.end());
  kept.floats.insert(kept.floats.end(), row.state.begin(), row.state.end());
  if (!tables_[table].emplace(row.key, std::move(kept)).second)
    fail<InvalidArgument>("row {} of table '{}' was shown twice", row.key, table);
}

std::optional<int64_t> Image::scalar(const std::string& name) const {
  const auto found = scalars_.find(name);
  return found == scalars_.end() ? std::nullopt : std::optional(found->second);
}

void Image::read(const std::string& vector, Range range, std::span<std::byte> into) {
  if (range.size() != into.size())
    fail<InvalidArgument>("room for {} bytes, where {} to {} of '{}' are asked for", into.size(), range.begin,
                          range.end, vector);
  copy(vector, range, into.data());
}

std::vector<std::byte> Image::bytes_of(const std::string& vector, Range range) const {
  std::vector<std::byte> bytes(range.size());
  copy(vector, range, bytes.data());
  return bytes;
}

void Image::copy(const std::string& vector, Range range, std::byte* into) const {
  static const std::map<size_t, std::vector<std::byte>> kNone;
  const auto found = vectors_.find(vector);
  const auto& parts = found == vectors_.end() ? kNone : found->second;
  auto next = parts.upper_bound(range.begin);
  if (next != parts.begin()) --next;
  size_t at = range.begin;
  for (; at < range.end && next != parts.end(); ++next) {
    const Range here = space::intersect({next->first, next->first + next->second.size()}, {at, range.end});
    if (here.empty() || here.begin != at) break;
    std::memcpy(into + (at - range.begin), next->second.data() + (at - next->first), here.size());
    at = here.end;
  }
  if (at < range.end)
    fail<InvalidArgument>("bytes {} to {} of '{}' are asked for, and those from {} on are not here", range.begin,
                          range.end, vector, at);
}

void Image::rows(const std::string& table, const std::function<void(const Row&)>& take) {
  const auto found = tables_.find(table);
  if (found == tables_.end()) return;
  for (const auto& [key, kept] : found->second) {
    const std::span<const float> floats(kept.floats);
    take({key, floats.first(kept.width), floats.subspan(kept.width), kept.steps, kept.age});
  }
}

bool Image::operator==(const Image& other) const {
  if (about_ != other.about_ || contents_ != other.contents_ || scalars_ != other.scalars_ || tables_ != other.tables_)
    return false;
  for (const std::string& vector : contents_.vectors())
    for (const Holding& holding : contents_.of(vector))
      if (bytes_of(vector, holding.range) != other.bytes_of(vector, holding.range)) return false;
  return true;
}

void Image::add(const Image& other) {
  if (other.known_) about(other.about_);
  for (const auto& [vector, parts] : other.vectors_)
    for (const auto& [begin, bytes] : parts)
      for (const Range& fresh : contents_.lacking(vector, {begin, begin + bytes.size()}, 0))
        part(vector, fresh, std::span(bytes).subspan(fresh.begin - begin, fresh.size()));
  for (const auto& [name, value] : other.scalars_) scalar(name, value);
  for (const auto& [table, rows] : other.tables_)
    for (const auto& [key, kept] : rows)
      if (!tables_[table].emplace(key, kept).second)
        fail<InvalidArgument>("row {} of table '{}' was shown twice", key, table);
}

}  // namespace trireme::state
