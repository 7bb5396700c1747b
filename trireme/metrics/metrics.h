#pragma once
// Counting what happens. One thread counts; a snapshot is a copy that anybody may keep.
#include <algorithm>
#include <cstdint>
#include <deque>
#include <string>
#include <utility>
#include <vector>

namespace trireme::metrics {

/// How often, how much in all, and the most.
struct Tally {
  uint64_t count = 0;
  double sum = 0, most = 0;

  void add(double value) {
    count++;
    sum += value;
    most = std::max(most, value);
  }
  double mean() const { return count == 0 ? 0 : sum / static_cast<double>(count); }
};

/// Values by name, in the order of their registration. A tally is three: NAME, NAME.mean and NAME.max.
using Snapshot = std::vector<std::pair<std::string, double>>;

/// Names things once; what it returns stays where it is. Not thread-safe.
class Registry {
 public:
  uint64_t& counter(const std::string& name) { return counters_.emplace_back(name, 0).second; }
  Tally& tally(const std::string& name) { return tallies_.emplace_back(name, Tally{}).second; }
  Snapshot snapshot() const;

 private:
  std::deque<std::pair<std::string, uint64_t>> counters_;
  std::deque<std::pair<std::string, Tally>> tallies_;
};

}  // namespace trireme::metrics
