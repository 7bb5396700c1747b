#include <fmt/format.h>

#include <algorithm>
#include <array>

#include <trireme/base/error.h>
#include <trireme/base/nearest.h>
#include <trireme/ps/consistency.h>

namespace trireme::ps {
namespace {

using Why = Decision::Why;
constexpr std::array kStaleNames = {"full", "inverse", "compensated"};

}  // namespace

Decision judge_push(const Rules& rules, const PushFacts& facts) {
  if (facts.repeated) return {Verdict::drop, Why::repeated};
  if (facts.delay > 0) return {.verdict = Verdict::hold, .why = Why::delayed, .seconds = facts.delay};
  switch (rules.order) {
    case Order::together:
      return facts.missing < 0 ? Decision{Verdict::apply, Why::complete}
                               : Decision{Verdict::hold, Why::missing, facts.missing};
    case Order::rotating:
      return facts.turn == facts.worker ? Decision{Verdict::apply, Why::in_turn}
                                        : Decision{Verdict::hold, Why::not_in_turn, facts.turn};
    case Order::on_arrival:
      return {Verdict::apply, Why::arrived};
  }
  return {};
}

Decision judge_begin(const Rules& rules, std::span<const int64_t> clocks, int /*worker*/, int64_t step) {
  if (rules.bound < 0) return {Verdict::apply, Why::unbounded};
  const auto slowest = std::min_element(clocks.begin(), clocks.end());
  if (slowest == clocks.end() || *slowest >= step) return {Verdict::apply, Why::within};
  const int64_t ahead = step - *slowest;
  const int who = static_cast<int>(slowest - clocks.begin());
  return {ahead <= rules.bound ? Verdict::apply : Verdict::hold, ahead <= rules.bound ? Why::within : Why::ahead, who,
          ahead};
}

Decision judge_lock(int holder, int worker) {
  if (holder < 0 || holder == worker) return {Verdict::apply, Why::free};
  return {Verdict::drop, Why::locked, holder};
}

double rate_for(const Rules& rules, double lr, uint64_t staleness) {
  return rules.stale == Stale::inverse ? lr / (1 + static_cast<double>(staleness) / rules.step_updates) : lr;
}

std::string Decision::reason() const {
  switch (why) {
    case Why::arrived:
      return "gradients are applied when they arrive";
    case Why::complete:
      return "the gradients of all workers are there";
    case Why::in_turn:
      return "it is this worker's turn";
    case Why::unbounded:
      return "nobody has to wait";
    case Why::within:
      return other < 0 ? "nobody is behind"
                       : fmt::format("it is {} steps ahead of worker {}, which is within the bound", steps, other);
    case Why::missing:
      return fmt::format("worker {} has not pushed yet", other);
    case Why::not_in_turn:
      return fmt::format("it is worker {}'s turn", other);
    case Why::delayed:
      return fmt::format("somebody asked for this worker's updates to be delayed; {:.3f} s are left", seconds);
    case Why::ahead:
      return fmt::format("it would be {} steps ahead of worker {}", steps, other);
    case Why::repeated:
      return "a request with this number was applied before";
    case Why::locked:
      return fmt::format("worker {} has the update lock", other);
    case Why::free:
      return "nobody else has the update lock";
  }
  return "";
}

std::vector<std::string> stale_names() { return {kStaleNames.begin(), kStaleNames.end()}; }
std::string name_of(Stale stale) { return kStaleNames[static_cast<size_t>(stale)]; }

Stale stale_named(const std::string& name) {
  for (size_t i = 0; i < kStaleNames.size(); i++)
    if (name == kStaleNames[i]) return static_cast<Stale>(i);
  fail<InvalidArgument>("unknown rule '{}' for stale gradients{}", name, did_you_mean(name, stale_names()));
}

}  // namespace trireme::ps
