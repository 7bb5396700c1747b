#pragma once
// What was counted up to one moment, as a value: it can be merged with others, travels as bytes, and is printed as
// JSON. Immutable, so that anybody may keep it and every thread may read it.
#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace trireme::metrics {

enum class Kind : uint8_t { counter, gauge, histogram };  // as they travel
std::string_view name_of(Kind kind);

constexpr size_t kBuckets = 32;          // of a histogram
constexpr size_t kMostBytes = 64 << 10;  // of an encoded snapshot

struct Entry {
  Kind kind = Kind::counter;
  std::string name, label, unit;
  double value = 0;                        // of a counter or a gauge
  double first = 0, sum = 0, most = 0;     // of a histogram: the first bucket's end, the sum and the largest of all
  std::array<double, kBuckets> buckets{};  // how many were below `first`, 2 first, 4 first, ... and not in one before

  /// Of a histogram.
  double count() const;
  double mean() const;
  bool operator==(const Entry&) const = default;
};

/// What a thread did, from when and for how long: seconds, on the machine's steady clock.
struct SpanRecord {
  std::string name;
  double begin = 0, seconds = 0;
  bool operator==(const SpanRecord&) const = default;
};

class Snapshot {
 public:
  Snapshot() = default;
  Snapshot(std::vector<Entry> entries, std::vector<SpanRecord> spans = {});

  const std::vector<Entry>& entries() const { return entries_; }
  const std::vector<SpanRecord>& spans() const { return spans_; }
  /// All entries of this name, whatever their label, as one; one of value 0 when there is none.
  Entry total(std::string_view name) const;

  /// Both: counters and histograms are added up, a gauge has `other`'s value, spans follow one another.
  Snapshot merged(const Snapshot& other) const;

  /// At most so many bytes: spans that do not fit are left out, and then entries.
  std::string encode(size_t most = kMostBytes) const;
  /// Throws Corruption.
  static Snapshot decode(std::string_view bytes);

  /// {"updates": 12, "wait_seconds": {"count": …, "sum": …, "mean": …, "max": …, "buckets": [[upper edge, count], …]},
  ///  "model 0": {…}}: what has a label is in an object of that name. A value that is no number is null.
  std::string json() const;

  bool operator==(const Snapshot&) const = default;

 private:
  std::vector<Entry> entries_;
  std::vector<SpanRecord> spans_;
};

}  // namespace trireme::metrics
