#include <algorithm>
#include <array>
#include <cstring>

#include <trireme/base/areas.h>
#include <trireme/base/error.h>

namespace trireme {
namespace {

enum State : uint32_t { kFree, kTaken, kNamed };  // of an entry, in this order

struct alignas(64) Entry {
  std::atomic<uint32_t> state;
  uint32_t parts;
  uint64_t offset;
  uint64_t bytes;
  char name[Areas::kLongestName + 1];
};
static_assert(sizeof(Entry) == 64);

constexpr size_t kEntries = Areas::kBytes / sizeof(Entry) - 1;

}  // namespace

struct Areas::Directory {
  alignas(64) std::atomic<uint64_t> end;  // of what was given out; 0: nothing, the directory itself apart
  std::array<Entry, kEntries> entries;
};

Areas::Areas(Segment& segment) : segment_(segment) {
  static_assert(sizeof(Directory) <= kBytes);
  directory_ = reinterpret_cast<Directory*>(segment_.map(0, kBytes, "the directory of shared memory"));
  begin_behind(kBytes);
}

void Areas::begin_behind(size_t end) {
  uint64_t now = directory_->end.load();
  while (now < end && !directory_->end.compare_exchange_weak(now, round_up(end, kPage))) {
  }
}

size_t Areas::claim(size_t bytes, const char* purpose) {
  const size_t whole = std::max(kPage, round_up(bytes, kPage));
  uint64_t offset = directory_->end.fetch_add(whole);
  try {
    segment_.reserve(offset, whole, purpose);
  } catch (...) {
    uint64_t end = offset + whole;
    directory_->end.compare_exchange_strong(end, offset);  // unless somebody has claimed what follows
    throw;
  }
  return offset;
}

std::optional<Area> Areas::find(std::string_view name) const {
  for (const Entry& entry : directory_->entries) {
    const uint32_t state = entry.state.load(std::memory_order_acquire);
    if (state == kFree) break;
    if (state == kNamed && name == entry.name) return Area{entry.offset, entry.bytes, static_cast<int>(entry.parts)};
  }
  return std::nullopt;
}

Area Areas::add(std::string_view name, size_t bytes, int parts, const char* purpose) {
  if (name.empty() || name.size() > kLongestName)
    fail<InvalidArgument>("the name of an area of shared memory has 1 to {} bytes, '{}' has {}", kLongestName, name,
                          name.size());
  if (find(name)) fail<InvalidArgument>("there is an area '{}' in shared memory already", name);
  const auto take = [](Entry& entry) {
    uint32_t none = kFree;
    return entry.state.compare_exchange_strong(none, kTaken);
  };
  const auto place = std::find_if(directory_->entries.begin(), directory_->entries.end(), take);
  if (place == directory_->entries.end())
    fail<InvalidArgument>("shared memory has {} named areas already, and no room for the name '{}'", kEntries, name);
  Area area{0, bytes, parts};
  area.offset = claim(area.total(), purpose);
  place->parts = static_cast<uint32_t>(parts);
  place->offset = area.offset;
  place->bytes = bytes;
  std::memcpy(place->name, name.data(), name.size());
  place->name[name.size()] = 0;
  place->state.store(kNamed, std::memory_order_release);
  return area;
}

}  // namespace trireme
