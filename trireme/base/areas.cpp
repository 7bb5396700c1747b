#include <algorithm>
#include <array>
#include <cstring>
#include <limits>

#include <trireme/base/areas.h>
#include <trireme/base/error.h>

namespace trireme {
namespace {

/// Of an entry. Spare: it has addresses, without memory and without a name.
enum State : uint32_t { kFree, kTaken, kNamed, kSpare };

/// Blocks that can have large pages (2 MiB) begin where one can.
uint64_t claim_addresses(std::atomic<uint64_t>& end, size_t bytes) {
  constexpr size_t kLargePage = 2 << 20;
  uint64_t now = end.load(), begin = 0;
  do begin = bytes >= kLargePage ? round_up(now, kLargePage) : now;
  while (!end.compare_exchange_weak(now, begin + bytes));
  return begin;
}

size_t whole_pages(size_t bytes) { return std::max(kPage, round_up(bytes, kPage)); }

}  // namespace

struct alignas(64) Areas::Entry {
  std::atomic<uint32_t> state;
  uint32_t parts;
  uint64_t epoch, fingerprint;
  uint64_t offset;
  uint64_t bytes;
  uint64_t room;  // of addresses, from offset on
  char name[Areas::kLongestName + 1];

  bool named(std::string_view wanted) const {
    return state.load(std::memory_order_acquire) == kNamed && wanted == name;
  }
  Area area() const { return {offset, bytes, static_cast<int>(parts), epoch, fingerprint}; }
};

namespace {

constexpr size_t kEntryBytes = 128;
constexpr size_t kEntries = Areas::kBytes / kEntryBytes - 1;

}  // namespace

struct Areas::Directory {
  alignas(64) std::atomic<uint64_t> end;  // of what was given out; 0: nothing, the directory itself apart
  std::atomic<uint64_t> needed;           // an epoch, + 1; 0: nobody has said so
  std::array<Entry, kEntries> entries;
};

Areas::Areas(Segment& segment) : segment_(segment) {
  static_assert(sizeof(Entry) == kEntryBytes && sizeof(Directory) <= kBytes);
  directory_ = reinterpret_cast<Directory*>(segment_.map(0, kBytes, "the directory of shared memory"));
  begin_behind(kBytes);
}

void Areas::begin_behind(size_t end) {
  uint64_t now = directory_->end.load();
  while (now < end && !directory_->end.compare_exchange_weak(now, round_up(end, kPage))) {
  }
}

size_t Areas::claim(size_t bytes, const char* purpose) {
  const size_t whole = whole_pages(bytes);
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

Areas::Entry* Areas::entry_of(std::string_view name, uint64_t epoch) const {
  for (Entry& entry : directory_->entries) {
    if (entry.state.load() == kFree) break;
    if (entry.named(name) && entry.epoch == epoch) return &entry;
  }
  return nullptr;
}

std::optional<Area> Areas::find(std::string_view name, uint64_t epoch) const {
  const Entry* entry = entry_of(name, epoch);
  return entry == nullptr ? std::nullopt : std::optional(entry->area());
}

std::optional<Area> Areas::find(std::string_view name) const {
  std::optional<Area> latest;
  for (const Entry& entry : directory_->entries) {
    if (entry.state.load() == kFree) break;
    if (entry.named(name) && (!latest || entry.epoch >= latest->epoch)) latest = entry.area();
  }
  return latest;
}

std::vector<std::pair<std::string, Area>> Areas::all(std::string_view prefix) const {
  std::vector<std::pair<std::string, Area>> found;
  for (const Entry& entry : directory_->entries) {
    const uint32_t state = entry.state.load(std::memory_order_acquire);
    if (state == kFree) break;
    if (state == kNamed && std::string_view(entry.name).starts_with(prefix))
      found.emplace_back(entry.name, entry.area());
  }
  return found;
}

bool Areas::room_for(std::string_view name, uint64_t epoch) const {
  const auto usable = [](const Entry& entry) { return entry.state.load() == kFree || entry.state.load() == kSpare; };
  return name.size() <= kLongestName && (std::any_of(directory_->entries.begin(), directory_->entries.end(), usable) ||
                                         entry_of(name, epoch) != nullptr);
}

/// The first entry in that state that fits, as this process's own; null: there is none.
template <class Fits>
Areas::Entry* Areas::seize(uint32_t state, const Fits& fits) {
  for (Entry& entry : directory_->entries) {
    uint32_t expected = state;
    if (entry.state.load() == state && fits(entry) && entry.state.compare_exchange_strong(expected, kTaken)) {
      if (fits(entry)) return &entry;  // still: nobody was in between
      entry.state.store(state);
    }
    if (expected == kFree && state != kFree) break;
  }
  return nullptr;
}

Areas::Entry& Areas::free_entry(std::string_view name, uint64_t epoch) {
  if (name.empty() || name.size() > kLongestName)
    fail<InvalidArgument>("the name of an area of shared memory has 1 to {} bytes, '{}' has {}", kLongestName, name,
                          name.size());
  Entry* entry = seize(kFree, [](const Entry&) { return true; });
  // Addresses of an earlier epoch are nobody's any more; this one's are given up only where names are short.
  if (entry == nullptr)
    entry = seize(kSpare, [&](const Entry& spare) { return spare.epoch < epoch || spare.room == 0; });
  if (entry == nullptr) entry = seize(kSpare, [](const Entry&) { return true; });
  if (entry == nullptr)
    fail<InvalidArgument>("shared memory has {} named areas already, and no room for the name '{}'", kEntries, name);
  return *entry;
}

void Areas::write(Entry& entry, std::string_view name, const Area& area) {
  entry.parts = static_cast<uint32_t>(area.parts);
  entry.epoch = area.epoch;
  entry.fingerprint = area.fingerprint;
  entry.offset = area.offset;
  entry.bytes = area.bytes;
  std::memcpy(entry.name, name.data(), name.size());
  entry.name[name.size()] = 0;
  entry.state.store(kNamed, std::memory_order_release);
}

Area Areas::add(std::string_view name, const Area& what, const char* purpose) {
  if (entry_of(name, what.epoch) != nullptr)
    fail<InvalidArgument>("there is an area '{}' in shared memory already", name);
  Entry& entry = free_entry(name, what.epoch);
  Area area = what;
  try {
    area.offset = claim(area.total(), purpose);
  } catch (...) {
    entry.room = 0;
    entry.state.store(kSpare);
    throw;
  }
  entry.room = whole_pages(area.total());
  write(entry, name, area);
  return area;
}

Areas::Taken Areas::take(std::string_view name, const Area& what, size_t needed, const char* purpose) {
  discard_older(name, what.epoch);
  Area area = what;
  if (Entry* entry = entry_of(name, what.epoch); entry != nullptr) {
    if (entry->bytes == what.bytes && entry->parts == static_cast<uint32_t>(what.parts)) {
      entry->fingerprint = what.fingerprint;
      return {entry->area(), true};
    }
    discard(*entry);
  }
  const size_t wanted = whole_pages(what.total());
  segment_.check_room(directory_->end.load(), std::min(wanted, needed), purpose);
  // Of the same epoch: whoever was in an earlier one may still write there.
  Entry* entry = seize(kSpare, [&](const Entry& spare) {
    return spare.epoch == what.epoch && spare.room >= wanted && spare.room / 2 <= wanted;
  });
  if (entry == nullptr) {
    entry = &free_entry(name, what.epoch);
    entry->offset = claim_addresses(directory_->end, wanted);
    entry->room = wanted;
  }
  area.offset = entry->offset;
  write(*entry, name, area);
  return {area, false};
}

/// Its addresses stay where they are: whoever maps them reads zeros. In its own epoch they can be used again.
void Areas::discard(Entry& entry) {
  segment_.give_back(entry.offset, entry.room);
  entry.state.store(kSpare, std::memory_order_release);
}

void Areas::need_from(uint64_t epoch) {
  uint64_t now = directory_->needed.load();
  while (now < epoch + 1 && !directory_->needed.compare_exchange_weak(now, epoch + 1)) {
  }
}

std::optional<uint64_t> Areas::needed_from() const {
  const uint64_t needed = directory_->needed.load();
  return needed == 0 ? std::nullopt : std::optional(needed - 1);
}

/// Of what crews before have left under this name, the latest stays, and what is needed.
void Areas::discard_older(std::string_view name, uint64_t epoch) {
  const uint64_t needed = needed_from().value_or(std::numeric_limits<uint64_t>::max());
  Entry* latest = nullptr;
  for (Entry& entry : directory_->entries) {
    if (entry.state.load() == kFree) break;
    if (!entry.named(name) || entry.epoch >= epoch || entry.epoch >= needed) continue;
    Entry* older = &entry;
    if (latest == nullptr || latest->epoch < entry.epoch) std::swap(older, latest);
    if (older == nullptr) continue;
    discard(*older);
  }
}

void Areas::release_before(uint64_t epoch, std::string_view mark) {
  for (Entry& entry : directory_->entries) {
    const uint32_t state = entry.state.load(std::memory_order_acquire);
    if (state == kFree) break;
    if (state == kNamed && entry.epoch < epoch && std::string_view(entry.name).find(mark) != std::string_view::npos)
      discard(entry);
  }
}

void Areas::release(std::string_view name, uint64_t epoch) {
  if (Entry* entry = entry_of(name, epoch); entry != nullptr) discard(*entry);
}

}  // namespace trireme
