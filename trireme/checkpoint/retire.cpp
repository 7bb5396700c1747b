#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include <trireme/checkpoint/folder.h>

namespace trireme::checkpoint {
namespace {

/// NaN when it has none.
double metric_of(const Entry& entry, const std::string& name) {
  if (!entry.manifest) return NAN;
  const auto found = entry.manifest->metrics.find(name);
  return found == entry.manifest->metrics.end() ? NAN : found->second;
}

/// The newest of the best; nullptr when none has the metric.
const Entry* best_of(const std::vector<const Entry*>& newest_first, const KeepRule& rule) {
  const Entry* best = nullptr;
  for (const Entry* entry : newest_first) {
    const double value = metric_of(*entry, rule.best);
    if (std::isnan(value)) continue;
    const double held = best == nullptr ? NAN : metric_of(*best, rule.best);
    if (best == nullptr || (rule.higher_is_better ? value > held : value < held)) best = entry;
  }
  return best;
}

std::string reason_of(const Entry& entry, const KeepRule& rule, const Entry* best) {
  std::string text = fmt::format("older than the {} newest", rule.keep);
  if (best == nullptr) return text;
  const double value = metric_of(entry, rule.best);
  return text + (std::isnan(value) ? fmt::format(", and without a {}", rule.best)
                                   : fmt::format(", and its {} {} is no better than {} of {}", rule.best, value,
                                                 metric_of(*best, rule.best), best->name));
}

}  // namespace

std::vector<Retired> retire(std::span<const Entry> newest_first, const KeepRule& rule) {
  if (rule.keep <= 0) return {};
  std::vector<const Entry*> whole;
  for (const Entry& entry : newest_first)
    if (entry.condition == Condition::complete) whole.push_back(&entry);
  const Entry* const best = rule.best.empty() ? nullptr : best_of(whole, rule);
  const size_t kept = std::min(whole.size(), static_cast<size_t>(rule.keep));
  std::vector<Retired> retired;
  size_t seen = 0;  // complete ones
  for (const Entry& entry : newest_first) {
    if (entry.condition == Condition::complete) {
      if (seen++ >= kept && &entry != best) retired.push_back({entry, reason_of(entry, rule, best)});
    } else if (entry.condition == Condition::damaged && seen >= kept && kept > 0) {
      retired.push_back({entry, "damaged, and older than those that are kept: " + entry.reason});
    }
  }
  std::reverse(retired.begin(), retired.end());
  return retired;
}

}  // namespace trireme::checkpoint
