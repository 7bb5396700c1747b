#include <algorithm>
#include <cstring>

#include <trireme/base/marks.h>
#include <trireme/space/journal.h>

namespace trireme::space {

size_t Journal::bytes(size_t slots) { return sizeof(Page) + 2 * kMostHomes * kHomeBytes + slots * sizeof(int64_t); }

Journal::Journal(std::byte* memory, size_t slots)
    : page_(reinterpret_cast<Page*>(memory)),
      data_(memory + sizeof(Page)),
      steps_(reinterpret_cast<int64_t*>(data_ + 2 * kMostHomes * kHomeBytes)),
      slots_(slots) {}

std::byte* Journal::home(uint64_t entry, size_t number) const {
  return data_ + (entry % 2 * kMostHomes + number) * kHomeBytes;
}

void Journal::begin(uint64_t step, std::span<const int64_t> steps) {
  std::copy_n(steps.begin(), std::min(steps.size(), slots_), steps_);
  page_->begun.store(step);
}

void Journal::enter(uint64_t owned, Range piece, std::span<const std::byte* const> homes, size_t bytes) {
  const uint64_t number = page_->entries.load(std::memory_order_relaxed);
  page_->headers[number % 2] = {
      page_->begun.load(std::memory_order_relaxed), owned, piece.begin, piece.end, homes.size(), bytes};
  for (size_t i = 0; i < homes.size(); i++) std::memcpy(home(number, i), homes[i], bytes);
  page_->entries.store(number + 1);
  mark("journal: entry", number);
  if (given_up_) given_up_();
}

void Journal::end(uint64_t step) { page_->ended.store(step); }

bool Journal::ended(uint64_t step) const { return page_->ended.load() >= step; }
bool Journal::begun(uint64_t step) const { return page_->begun.load() >= step; }

std::optional<Journal::Entry> Journal::latest(uint64_t step) const {
  const uint64_t entries = page_->entries.load();
  if (entries == 0) return std::nullopt;
  const Page::Header& header = page_->headers[(entries - 1) % 2];
  if (header.step != step || header.homes > kMostHomes || header.bytes > kHomeBytes) return std::nullopt;
  Entry entry{header.owned, {header.begin, header.end}, {}};
  for (size_t i = 0; i < header.homes; i++) entry.homes.emplace_back(home(entries - 1, i), header.bytes);
  return entry;
}

std::span<const int64_t> Journal::steps_before() const { return {steps_, slots_}; }

}  // namespace trireme::space
