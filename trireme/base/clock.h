#pragma once
// Time: the steady clock, and deadlines that every wait carries.
#include <algorithm>
#include <chrono>

namespace trireme {

using Clock = std::chrono::steady_clock;
using Seconds = std::chrono::duration<double>;

inline double seconds_since(Clock::time_point start) { return Seconds(Clock::now() - start).count(); }

/// A point in time after which a wait gives up. Constructing one reads the clock once.
class Deadline {
 public:
  explicit Deadline(Seconds limit)
      : limit_(limit), at_(Clock::now() + std::chrono::duration_cast<Clock::duration>(std::min(limit, kLongest))) {}
  bool passed() const { return Clock::now() >= at_; }
  Seconds limit() const { return limit_; }
  /// Never negative.
  Seconds left() const { return std::max(Seconds(0), Seconds(at_ - Clock::now())); }

 private:
  static constexpr Seconds kLongest{1e9};  // 30 years; more would overflow the clock
  Seconds limit_;
  Clock::time_point at_;
};

}  // namespace trireme
