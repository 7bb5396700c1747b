#include <fmt/format.h>

#include <trireme/exchange/holdings.h>
#include <trireme/exchange/options.h>

namespace trireme::exchange {
namespace {

double megabytes(size_t bytes) { return static_cast<double>(bytes) / 1e6; }

/// Whose the figures are: of a machine, or of its ranks that have the same part of the model.
std::string holder(const HoldingsOf& what) {
  if (!what.in_parts) return "each holds";
  if (what.ranks_here == 1) return "each rank holds";
  return fmt::format("the {} ranks of a machine that have the same part of the model hold", what.ranks_here);
}

}  // namespace

Holdings holdings_of(const HoldingsOf& what) {
  const auto machines = static_cast<size_t>(what.machines), ranks = static_cast<size_t>(what.ranks_here);
  const auto share = [&](int stage) { return what.zero >= stage ? machines : size_t{1}; };
  Holdings held;
  held.parameters = what.parameter_bytes / share(3);
  held.optimizer = what.parameter_bytes * space::state_vectors(what.optimizer) / share(1);
  held.gradients = what.parameter_bytes * ranks;
  if (what.zero < 2) return held;
  if (!what.whole_gradients) held.gradients = machines > 1 ? what.parameter_bytes / machines : 0;
  if (machines == 1) return held;
  const size_t window = window_of({.zero_window = what.zero_window}, what.parameter_bytes, what.largest_bucket);
  const size_t gathered = what.zero == 3 ? window / 2 : 0;
  held.window = what.whole_gradients ? gathered : window;
  return held;
}

std::string describe_holdings(const HoldingsOf& what) {
  HoldingsOf plain = what;
  plain.zero = 0;
  const Holdings now = holdings_of(what), before = holdings_of(plain);
  const double saved =
      before.total() == 0 ? 0 : 100 - 100 * static_cast<double>(now.total()) / static_cast<double>(before.total());
  const std::string figures = fmt::format(
      "{:.1f} MB of parameters (of {:.1f}), {:.1f} MB of gradients (of {:.1f}), {:.1f} MB of optimizer state (of "
      "{:.1f})",
      megabytes(now.parameters), megabytes(before.parameters), megabytes(now.gradients), megabytes(before.gradients),
      megabytes(now.optimizer), megabytes(before.optimizer));
  if (what.machines == 1)
    return fmt::format(
        "zero {} on one machine: {} {} rank{} share parameters and optimizer state already{}: {}, {:.0f} % less than "
        "zero 0",
        what.zero, what.in_parts ? "of one part of the model" : "its", what.ranks_here, what.ranks_here == 1 ? "" : "s",
        what.zero < 2          ? ", so that there is no more to save"
        : what.whole_gradients ? ", and gradients are given back after each step"
                               : ", and gradients are given back as soon as they are used",
        figures, saved);
  std::string text = fmt::format("zero {} on {} machines: {} {}", what.zero, what.machines, holder(what), figures);
  if (now.window > 0) text += fmt::format(", and in a step a window of {:.1f} MB", megabytes(now.window));
  if (what.zero >= 2 && what.whole_gradients) text += "; gradients stay until the end of a step's backward passes";
  return text + fmt::format(", {:.0f} % less than zero 0", saved);
}

}  // namespace trireme::exchange
