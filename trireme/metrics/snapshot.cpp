#include <nlohmann/json.hpp>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>
#include <utility>

#include <trireme/base/error.h>
#include <trireme/metrics/snapshot.h>

namespace trireme::metrics {
namespace {

constexpr std::string_view kMagic = "TRM1";
constexpr size_t kMostText = 255;

// ---- the format: magic, u16 entries, the entries, u16 spans, the spans. Little endian; texts begin with their length,
// a byte. An entry: kind, name, label, unit; its value, or first, sum, most, u8 buckets and for each its number and
// count. A span: name, begin, seconds.

class Writer {
 public:
  template <class T>
  void put(T value) {
    bytes.append(reinterpret_cast<const char*>(&value), sizeof value);
  }
  void text(std::string_view value) {
    const auto part = value.substr(0, kMostText);
    put(static_cast<uint8_t>(part.size()));
    bytes += part;
  }
  std::string bytes;
};

std::string encoded(const Entry& entry) {
  Writer out;
  out.put(static_cast<uint8_t>(entry.kind));
  for (const std::string* text : {&entry.name, &entry.label, &entry.unit}) out.text(*text);
  if (entry.kind != Kind::histogram) return out.put(entry.value), std::move(out.bytes);
  for (double value : {entry.first, entry.sum, entry.most}) out.put(value);
  out.put(
      static_cast<uint8_t>(std::count_if(entry.buckets.begin(), entry.buckets.end(), [](double n) { return n > 0; })));
  for (size_t at = 0; at < kBuckets; at++)
    if (entry.buckets[at] > 0) out.put(static_cast<uint8_t>(at)), out.put(entry.buckets[at]);
  return std::move(out.bytes);
}

std::string encoded(const SpanRecord& span) {
  Writer out;
  out.text(span.name);
  out.put(span.begin);
  out.put(span.seconds);
  return std::move(out.bytes);
}

/// As many as fit into `room`, in order, after their number.
template <class Item>
std::string encoded(const std::vector<Item>& items, size_t room) {
  Writer out;
  out.put(uint16_t{0});
  uint16_t count = 0;
  for (const Item& item : items) {
    const std::string bytes = encoded(item);
    if (out.bytes.size() + bytes.size() > room || count == UINT16_MAX) break;
    out.bytes += bytes;
    count++;
  }
  std::memcpy(out.bytes.data(), &count, sizeof count);
  return std::move(out.bytes);
}

class Reader {
 public:
  explicit Reader(std::string_view bytes) : bytes_(bytes) {}
  template <class T>
  T take() {
    T value;
    std::memcpy(&value, piece(sizeof value).data(), sizeof value);
    return value;
  }
  std::string_view piece(size_t size) {
    if (bytes_.size() < size) fail<Corruption>("a snapshot of metrics ends early");
    const auto part = bytes_.substr(0, size);
    bytes_.remove_prefix(size);
    return part;
  }
  /// They end on terminals and in JSON.
  std::string text() {
    std::string value(piece(take<uint8_t>()));
    if (std::any_of(value.begin(), value.end(), [](unsigned char c) { return c < 0x20 || c > 0x7e; }))
      fail<Corruption>("a name in a snapshot of metrics has characters that are not printable ASCII");
    return value;
  }
  bool at_end() const { return bytes_.empty(); }

 private:
  std::string_view bytes_;
};

void read_histogram(Reader& in, Entry& entry) {
  entry.first = in.take<double>();
  entry.sum = in.take<double>();
  entry.most = in.take<double>();
  if (!(entry.first > 0 && std::isfinite(entry.first))) fail<Corruption>("a histogram without a first bucket");
  const auto count = in.take<uint8_t>();
  for (int i = 0, last = -1; i < count; i++) {
    const int at = in.take<uint8_t>();
    const auto number = in.take<double>();
    if (at <= last || at >= static_cast<int>(kBuckets) || !(number > 0 && std::isfinite(number)))
      fail<Corruption>("a histogram with a bucket that cannot be");
    entry.buckets[static_cast<size_t>(at)] = number;
    last = at;
  }
}

Entry read_entry(Reader& in) {
  Entry entry;
  const auto kind = in.take<uint8_t>();
  if (kind > static_cast<uint8_t>(Kind::histogram)) fail<Corruption>("there is no kind {} of metrics", kind);
  entry.kind = static_cast<Kind>(kind);
  for (std::string* text : {&entry.name, &entry.label, &entry.unit}) *text = in.text();
  if (entry.kind == Kind::histogram)
    read_histogram(in, entry);
  else
    entry.value = in.take<double>();
  return entry;
}

SpanRecord read_span(Reader& in) {
  SpanRecord span;
  span.name = in.text();
  span.begin = in.take<double>();
  span.seconds = in.take<double>();
  return span;
}

void add_to(Entry& sum, const Entry& more) {
  if (sum.kind != more.kind) return;  // of other versions: the first counts
  if (sum.kind == Kind::gauge) return void(sum.value = more.value);
  sum.value += more.value;
  sum.sum += more.sum;
  sum.most = std::max(sum.most, more.most);
  for (size_t at = 0; at < kBuckets; at++) sum.buckets[at] += more.buckets[at];
}

/// Whole numbers without a point.
nlohmann::ordered_json number(double value) {
  constexpr double kExact = 0x1p53;
  if (std::abs(value) < kExact && value == std::floor(value)) return static_cast<int64_t>(value);
  return value;
}

nlohmann::ordered_json json_of(const Entry& entry) {
  if (entry.kind != Kind::histogram) return number(entry.value);
  auto buckets = nlohmann::ordered_json::array();
  for (size_t at = 0; at < kBuckets; at++)
    if (entry.buckets[at] > 0)
      buckets.push_back({number(std::ldexp(entry.first, static_cast<int>(at))), number(entry.buckets[at])});
  return {{"count", number(entry.count())},
          {"sum", number(entry.sum)},
          {"mean", number(entry.mean())},
          {"max", number(entry.most)},
          {"buckets", buckets}};
}

}  // namespace

std::string_view name_of(Kind kind) {
  constexpr std::string_view names[] = {"counter", "gauge", "histogram"};
  return names[static_cast<size_t>(kind)];
}

double Entry::count() const { return std::accumulate(buckets.begin(), buckets.end(), 0.0); }
double Entry::mean() const { return count() > 0 ? sum / count() : 0; }

Snapshot::Snapshot(std::vector<Entry> entries, std::vector<SpanRecord> spans)
    : entries_(std::move(entries)), spans_(std::move(spans)) {}

Entry Snapshot::total(std::string_view name) const {
  Entry all;
  bool found = false;
  for (const Entry& entry : entries_) {
    if (entry.name != name) continue;
    if (std::exchange(found, true))
      add_to(all, entry);
    else
      all = entry;
  }
  all.label.clear();
  return all;
}

Snapshot Snapshot::merged(const Snapshot& other) const {
  Snapshot result = *this;
  for (const Entry& entry : other.entries_) {
    const auto same = std::find_if(result.entries_.begin(), result.entries_.end(), [&](const Entry& one) {
      return one.name == entry.name && one.label == entry.label;
    });
    if (same == result.entries_.end())
      result.entries_.push_back(entry);
    else
      add_to(*same, entry);
  }
  result.spans_.insert(result.spans_.end(), other.spans_.begin(), other.spans_.end());
  return result;
}

std::string Snapshot::encode(size_t most) const {
  if (most < kMagic.size() + 2 * sizeof(uint16_t)) return "";
  std::string bytes(kMagic);
  bytes += encoded(entries_, most - bytes.size() - sizeof(uint16_t));
  bytes += encoded(spans_, most - bytes.size());
  return bytes;
}

Snapshot Snapshot::decode(std::string_view bytes) {
  if (bytes.size() > kMostBytes)
    fail<Corruption>("a snapshot of metrics has {} bytes at most, not {}", kMostBytes, bytes.size());
  Reader in(bytes);
  if (in.piece(kMagic.size()) != kMagic) fail<Corruption>("these bytes are no snapshot of metrics");
  Snapshot result;
  for (int left = in.take<uint16_t>(); left > 0; left--) result.entries_.push_back(read_entry(in));
  for (int left = in.take<uint16_t>(); left > 0; left--) result.spans_.push_back(read_span(in));
  if (!in.at_end()) fail<Corruption>("bytes follow after a snapshot of metrics");
  return result;
}

std::string Snapshot::json() const {
  auto all = nlohmann::ordered_json::object();
  for (const Entry& entry : entries_) {
    auto& place = entry.label.empty() ? all : all[entry.label];
    if (!place.is_object()) place = nlohmann::ordered_json::object();
    place[entry.name] = json_of(entry);
  }
  auto spans = nlohmann::ordered_json::array();
  for (const SpanRecord& span : spans_)
    spans.push_back({{"name", span.name}, {"begin", span.begin}, {"seconds", span.seconds}});
  if (!spans.empty()) all["spans"] = spans;
  return all.dump();
}

}  // namespace trireme::metrics
