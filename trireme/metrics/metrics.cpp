#include <algorithm>

#include <trireme/base/error.h>
#include <trireme/metrics/metrics.h>

namespace trireme::metrics {
namespace {

constexpr size_t cells_of(Kind kind) { return kind == Kind::histogram ? Histogram::kCounts + kBuckets : 1; }

/// The values of one writer join those of the others.
void merge_into(std::vector<double>& sums, const Cells& cells, Kind kind) {
  for (size_t at = 0; at < sums.size(); at++) {
    if (kind == Kind::histogram && at == Histogram::kMost)
      sums[at] = std::max(sums[at], cells.get(at));
    else if (kind == Kind::gauge)
      sums[at] = cells.get(at);
    else
      sums[at] += cells.get(at);
  }
}

}  // namespace

std::shared_ptr<Cells> Registry::add(Kind kind, const Description& what, const std::string& label, double first) {
  auto cells = std::make_shared<Cells>(cells_of(kind));
  const Lock lock(mutex_);
  const auto same = [&](const Item& item) { return item.what.name == what.name && item.label == label; };
  auto item = std::find_if(items_.begin(), items_.end(), same);
  if (item == items_.end()) {
    items_.push_back({kind, what, label, first, {}, std::vector<double>(cells_of(kind))});
    item = items_.end() - 1;
  }
  if (item->kind != kind)
    fail<InvalidArgument>("'{}' is a {} already, and cannot be a {} as well", what.name, name_of(item->kind),
                          name_of(kind));
  item->writers.push_back(cells);
  return cells;
}

void Registry::add(std::shared_ptr<Ring> ring) {
  const Lock lock(mutex_);
  rings_.push_back(std::move(ring));
}

Snapshot Registry::snapshot(size_t most_spans) const {
  std::vector<Entry> entries;
  std::vector<SpanRecord> spans;
  const Lock lock(mutex_);
  for (Item& item : items_) {
    // What is said of a closed handle is its last word: it is added once, to what has passed.
    std::erase_if(item.writers, [&](const auto& cells) {
      if (!cells->closed()) return false;
      if (item.kind != Kind::gauge) merge_into(item.past, *cells, item.kind);
      return true;
    });
    if (item.kind == Kind::gauge && item.writers.empty()) continue;
    std::vector<double> values = item.past;
    for (const auto& cells : item.writers) merge_into(values, *cells, item.kind);
    Entry entry{.kind = item.kind,
                .name = std::string(item.what.name),
                .label = item.label,
                .unit = std::string(item.what.unit)};
    if (item.kind == Kind::histogram) {
      entry.first = item.first;
      entry.sum = values[Histogram::kSum];
      entry.most = values[Histogram::kMost];
      std::copy_n(values.begin() + Histogram::kCounts, kBuckets, entry.buckets.begin());
    } else {
      entry.value = values[0];
    }
    entries.push_back(std::move(entry));
  }
  std::erase_if(rings_, [](const auto& ring) { return ring->closed(); });
  for (const auto& ring : rings_) ring->read(most_spans, spans);
  return {std::move(entries), std::move(spans)};
}

std::vector<Registry::Listed> Registry::listed() const {
  std::vector<Listed> all;
  const Lock lock(mutex_);
  for (const Item& item : items_)
    if (std::none_of(all.begin(), all.end(), [&](const Listed& one) { return one.what.name == item.what.name; }))
      all.push_back({item.kind, item.what});
  return all;
}

Handle::Handle(Registry* registry, Kind kind, const Description& what, const std::string& label, double first)
    : cells_(registry != nullptr ? registry->add(kind, what, label, first) : std::make_shared<Cells>(cells_of(kind))) {}

Spans::Spans(Registry* registry) : ring_(std::make_shared<Ring>()) {
  if (registry != nullptr) registry->add(ring_);
}

/// Whoever reads a value of this entry has, by the release, the number of those written before it: read() leaves out
/// what may have been overwritten.
void Ring::add(const char* name, Clock::time_point begin, double seconds) noexcept {
  const uint64_t at = written_.load(std::memory_order_relaxed);
  Slot& slot = slots_[at % kEntries];
  slot.name.store(name, std::memory_order_release);
  slot.begin.store(begin.time_since_epoch().count(), std::memory_order_release);
  slot.seconds.store(seconds, std::memory_order_release);
  written_.store(at + 1, std::memory_order_release);
}

void Ring::read(size_t most, std::vector<SpanRecord>& out) const {
  const uint64_t end = written_.load(std::memory_order_acquire);
  const uint64_t begin = end - std::min<uint64_t>({end, most, kEntries});
  std::vector<SpanRecord> found;
  for (uint64_t at = begin; at < end; at++) {
    const Slot& slot = slots_[at % kEntries];
    const char* name = slot.name.load(std::memory_order_acquire);
    const Clock::duration since(slot.begin.load(std::memory_order_acquire));
    found.push_back({name, Seconds(since).count(), slot.seconds.load(std::memory_order_acquire)});
  }
  const uint64_t now = written_.load(std::memory_order_acquire);  // the entry of this number may be half written
  const uint64_t sure = now < kEntries ? 0 : now - kEntries + 1;
  for (uint64_t at = std::max(begin, sure); at < end; at++) out.push_back(std::move(found[at - begin]));
}

}  // namespace trireme::metrics
