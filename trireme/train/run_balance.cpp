// What a run says of samples that are divided by speed, and of a worker that makes the others wait.
#include <utility>

#include <trireme/train/run.h>

namespace trireme::train {
namespace {

std::string straggler_text(const exchange::Balance& balance, size_t batch) {
  const exchange::Straggler& slow = *balance.straggler;
  const auto rank = static_cast<size_t>(slow.rank);
  std::string text =
      fmt::format("{} is slow: the others waited {:.0f} % of the last {} steps for it ({:.3g} ms a step of {:.3g} ms)",
                  balance.names[rank], 100 * slow.waited / slow.step, slow.steps, 1e3 * slow.waited, 1e3 * slow.step);
  if (balance.shares.empty()) return text;
  return text + fmt::format("; its share is now {} of {} samples", balance.shares[rank], batch);
}

}  // namespace

/// Each once.
void Run::tell_of_balance(const Parallel& train) {
  const exchange::Balance& balance = train.balance();
  const bool found = std::exchange(told_stragglers_, balance.stragglers) != balance.stragglers;
  const bool changed = std::exchange(told_changes_, balance.changes) != balance.changes;
  if (!train.group().first()) return;
  if (found && balance.straggler) listener_.note(straggler_text(balance, options_.batch));
  if (changed) listener_.note("shares: " + balance.reason);
}

}  // namespace trireme::train
