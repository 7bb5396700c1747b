#include <trireme/metrics/metrics.h>

namespace trireme::metrics {

Snapshot Registry::snapshot() const {
  Snapshot result;
  for (const auto& [name, value] : counters_) result.emplace_back(name, static_cast<double>(value));
  for (const auto& [name, tally] : tallies_) {
    result.emplace_back(name, static_cast<double>(tally.count));
    result.emplace_back(name + ".mean", tally.mean());
    result.emplace_back(name + ".max", tally.most);
  }
  return result;
}

}  // namespace trireme::metrics
