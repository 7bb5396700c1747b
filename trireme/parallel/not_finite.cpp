#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include <trireme/parallel/not_finite.h>

namespace trireme {

Finding finding_of(double loss, const std::optional<exchange::Flaw>& flaw) {
  const Finding::Kind kind = !std::isfinite(loss) ? Finding::loss
                             : !flaw              ? Finding::nothing
                             : flaw->own          ? Finding::gradient
                                                  : Finding::in_sum;
  return {static_cast<double>(kind), flaw ? static_cast<double>(flaw->slot) : 0, loss};
}

std::string explain(std::span<const Finding> findings, int first_rank, int64_t update,
                    const std::function<std::string(size_t)>& name_of) {
  const auto best = std::max_element(findings.begin(), findings.end(),
                                     [](const Finding& a, const Finding& b) { return a.kind < b.kind; });
  const auto rank = first_rank + (best - findings.begin());
  const auto tensor = [&] {
    return fmt::format("the gradient of '{}' became NaN or infinite", name_of(static_cast<size_t>(best->slot)));
  };
  switch (static_cast<Finding::Kind>(static_cast<int>(best->kind))) {
    case Finding::loss:
      return fmt::format("the loss became {} on rank {} at update {}", std::isnan(best->value) ? "NaN" : "infinite",
                         rank, update);
    case Finding::gradient:
      return fmt::format("{} on rank {} at update {}, with finite losses", tensor(), rank, update);
    case Finding::in_sum:
      return fmt::format("{} at update {}, summed over ranks 0 to {}, with finite losses", tensor(), update,
                         first_rank + static_cast<int>(findings.size()) - 1);
    case Finding::nothing:
      break;
  }
  return fmt::format("a gradient became NaN or infinite at update {}, with finite losses", update);
}

}  // namespace trireme
