#pragma once
// Counting what happens: counters, gauges, histograms and spans, which whoever counts owns as handles.
//
// A handle is one writer's: a thread's, or that of whoever holds a certain lock. It writes cells of its own, so
// counting takes a relaxed load and a relaxed store, no lock, no allocation and no atomic read-modify-write. Where
// several threads count the same thing, each has a handle of the same description: a snapshot adds them up. Handles and
// the registry that knows them may be destroyed in any order; what a counter or a histogram has counted stays in the
// registry, a gauge goes with its handle.
//
// Nothing here blocks, but making a handle and taking a snapshot, which share a lock.
#include <algorithm>
#include <array>
#include <atomic>
#include <bit>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <trireme/base/clock.h>
#include <trireme/base/lock.h>
#include <trireme/metrics/snapshot.h>

namespace trireme::metrics {

/// What is counted. Texts must live as long as the program: descriptions are constants.
struct Description {
  std::string_view name;  // with the unit at its end, where it is a measure: "wait_seconds"
  std::string_view unit;  // "updates", "seconds", "bytes"
  std::string_view help;  // a sentence without a full stop
};

/// Where a histogram's first bucket ends; each further one is twice as wide. Powers of two, so that edges are exact.
constexpr double kMicrosecond = 0x1p-20, kOne = 1;

/// The values of one handle. On cache lines of its own.
class Cells {
 public:
  explicit Cells(size_t count) : lines_((count + kLine - 1) / kLine) {}

  double get(size_t at) const noexcept { return cell(at).load(std::memory_order_relaxed); }
  void set(size_t at, double value) noexcept { cell(at).store(value, std::memory_order_relaxed); }
  /// Not atomic as a whole: there is one writer.
  void add(size_t at, double value) noexcept { set(at, get(at) + value); }

  void close() noexcept { closed_.store(true, std::memory_order_release); }
  bool closed() const noexcept { return closed_.load(std::memory_order_acquire); }

 private:
  static constexpr size_t kLine = 8;
  struct alignas(64) Line {
    std::array<std::atomic<double>, kLine> cells{};
  };
  const std::atomic<double>& cell(size_t at) const { return lines_[at / kLine].cells[at % kLine]; }
  std::atomic<double>& cell(size_t at) { return lines_[at / kLine].cells[at % kLine]; }

  std::vector<Line> lines_;
  std::atomic<bool> closed_{false};
};

class Ring;

/// Knows all handles that were made with it. Thread-safe. Owned by a world, a server or a launcher.
class Registry {
 public:
  /// Without `timed`, histograms of times and spans stay empty, and no clock is read for them: to measure what that
  /// costs.
  explicit Registry(bool timed = true) : timed_(timed) {}
  Registry(const Registry&) = delete;
  Registry& operator=(const Registry&) = delete;

  bool timed() const { return timed_; }
  /// All values now, and the last spans of each thread, `most_spans` at most.
  Snapshot snapshot(size_t most_spans = 0) const;

  struct Listed {
    Kind kind;
    Description what;
  };
  /// What there is, each name once, in the order of its making.
  std::vector<Listed> listed() const;

 private:
  friend class Handle;
  friend class Spans;
  struct Item {
    Kind kind;
    Description what;
    std::string label;
    double first;
    std::vector<std::shared_ptr<Cells>> writers;
    std::vector<double> past;  // of handles that are gone
  };
  std::shared_ptr<Cells> add(Kind kind, const Description& what, const std::string& label, double first);
  void add(std::shared_ptr<Ring> ring);

  const bool timed_;
  mutable Mutex mutex_;
  mutable std::vector<Item> items_ TRIREME_GUARDED_BY(mutex_);
  mutable std::vector<std::shared_ptr<Ring>> rings_ TRIREME_GUARDED_BY(mutex_);
};

/// What all handles have in common. Movable; without a registry it counts for its owner alone.
class Handle {
 public:
  ~Handle() {
    if (cells_) cells_->close();
  }
  Handle(Handle&&) noexcept = default;
  Handle& operator=(Handle&& other) noexcept {
    std::swap(cells_, other.cells_);
    return *this;
  }

 protected:
  Handle(Registry* registry, Kind kind, const Description& what, const std::string& label, double first = 0);
  std::shared_ptr<Cells> cells_;
};

/// Something that only grows.
class Counter : public Handle {
 public:
  /// `label` keeps apart several of one name: "model 1", "lane".
  Counter(Registry* registry, const Description& what, const std::string& label = "")
      : Handle(registry, Kind::counter, what, label) {}
  void add(double more = 1) noexcept { cells_->add(0, more); }
  double value() const noexcept { return cells_->get(0); }
};

/// Something that goes up and down. NaN: nothing to say now.
class Gauge : public Handle {
 public:
  Gauge(Registry* registry, const Description& what, const std::string& label = "")
      : Handle(registry, Kind::gauge, what, label) {}
  void set(double value) noexcept { cells_->set(0, value); }
  double value() const noexcept { return cells_->get(0); }
};

/// How often which size: kBuckets of them, the sum and the largest.
class Histogram : public Handle {
 public:
  /// `first` is a power of two.
  Histogram(Registry* registry, const Description& what, const std::string& label = "", double first = kMicrosecond)
      : Handle(registry, Kind::histogram, what, label, first),
        inverse_(1 / first),
        timed_(registry != nullptr && registry->timed()) {}
  /// What is negative, or no number, is not counted.
  void add(double value) noexcept {
    if (!(value >= 0)) return;
    cells_->add(kSum, value);
    if (value > cells_->get(kMost)) cells_->set(kMost, value);
    cells_->add(kCounts + bucket_of(value * inverse_), 1);
  }
  /// Whether times are worth measuring.
  bool timed() const { return timed_; }

  static constexpr size_t kSum = 0, kMost = 1, kCounts = 2;  // cells
  /// Of a value in units of the first bucket: [0, 1), [1, 2), [2, 4), ...
  static size_t bucket_of(double value) noexcept {
    if (value < 1) return 0;
    const size_t exponent = (std::bit_cast<uint64_t>(value) >> 52) - 1023;
    return std::min(exponent + 1, kBuckets - 1);
  }

 private:
  double inverse_;
  bool timed_;
};

/// The last spans of one thread.
class Ring {
 public:
  static constexpr size_t kEntries = 256;
  /// `name` is a constant.
  void add(const char* name, Clock::time_point begin, double seconds) noexcept;
  void close() noexcept { closed_.store(true, std::memory_order_release); }
  bool closed() const noexcept { return closed_.load(std::memory_order_acquire); }
  /// The last `most`, oldest first. From any thread.
  void read(size_t most, std::vector<SpanRecord>& out) const;

 private:
  struct Slot {
    std::atomic<const char*> name{nullptr};
    std::atomic<Clock::time_point::rep> begin{0};
    std::atomic<double> seconds{0};
  };
  std::array<Slot, kEntries> slots_;
  std::atomic<uint64_t> written_{0};
  std::atomic<bool> closed_{false};
};

/// A thread's way to its ring.
class Spans {
 public:
  explicit Spans(Registry* registry);
  ~Spans() {
    if (ring_) ring_->close();
  }
  Spans(Spans&&) noexcept = default;
  Spans& operator=(Spans&&) = delete;
  void add(const char* name, Clock::time_point begin, double seconds) noexcept { ring_->add(name, begin, seconds); }

 private:
  std::shared_ptr<Ring> ring_;
};

/// Adds the time from its construction to its destruction to a histogram.
class Timer {
 public:
  explicit Timer(Histogram* histogram) : histogram_(histogram != nullptr && histogram->timed() ? histogram : nullptr) {
    if (histogram_ != nullptr) begin_ = Clock::now();
  }
  ~Timer() {
    if (histogram_ != nullptr) histogram_->add(seconds_since(begin_));
  }
  Timer(const Timer&) = delete;
  Timer& operator=(const Timer&) = delete;

 private:
  Histogram* const histogram_;
  Clock::time_point begin_{};
};

/// Phases that follow one another, with one look at the clock between two.
class Laps {
 public:
  Laps(Spans& spans, bool timed) : spans_(spans), timed_(timed) {
    if (timed_) last_ = Clock::now();
  }
  /// What has just ended: a span, and an entry of the histogram.
  void end(const char* name, Histogram& histogram) noexcept {
    if (!timed_) return;
    const auto now = Clock::now();
    const double seconds = Seconds(now - last_).count();
    histogram.add(seconds);
    spans_.add(name, last_, seconds);
    last_ = now;
  }

 private:
  Spans& spans_;
  const bool timed_;
  Clock::time_point last_{};
};

}  // namespace trireme::metrics
