#pragma once
// The words of NotFinite: who had NaN or infinity, when, and where.
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>

#include <trireme/exchange/outcome.h>

namespace trireme {

/// What one rank knows. Numbers, as it goes to all ranks.
struct Finding {
  /// The higher, the better it explains.
  enum Kind : int { nothing, in_sum, gradient, loss };
  double kind = nothing;
  double slot = 0;   // of the gradient
  double value = 0;  // the loss
};

/// A rank's loss and gradients.
Finding finding_of(double loss, const std::optional<exchange::Flaw>& flaw);

/// "the loss became NaN on rank 1 at update 7", from the findings of `first_rank` and those after it: the same for
/// whoever has the same findings.
std::string explain(std::span<const Finding> findings, int first_rank, int64_t update,
                    const std::function<std::string(size_t slot)>& name_of);

}  // namespace trireme
