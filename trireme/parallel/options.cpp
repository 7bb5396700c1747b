#include <algorithm>

#include <trireme/base/duration.h>
#include <trireme/base/error.h>
#include <trireme/base/nearest.h>
#include <trireme/parallel/options.h>
#include <trireme/parallel/step_limit.h>

namespace trireme {

std::string too_long(int64_t update, int rank, Seconds taken, const WaitLimit& limit) {
  if (limit.timeout.count() <= 0 || taken <= limit.timeout) return "";
  return fmt::format("update {} took {:.3g} s on rank {}, and {} is {}{}", update, taken.count(), rank, limit.setting,
                     duration_text(limit.timeout), longer_helps(limit.setting));
}

std::vector<std::string> precision_names() { return {"f32", "bf16"}; }
Precision precision_named(const std::string& name) {
  if (name == "f32" || name == "bf16") return name == "bf16" ? Precision::bf16 : Precision::f32;
  fail<InvalidArgument>("unknown precision '{}'{}: f32 or bf16", name, did_you_mean(name, precision_names()));
}

std::vector<std::string> balancing_names() { return {"even", "watch", "auto"}; }
Balancing balancing_named(const std::string& name) {
  const std::vector<std::string> names = balancing_names();
  const auto found = std::find(names.begin(), names.end(), name);
  if (found != names.end()) return static_cast<Balancing>(found - names.begin());
  fail<InvalidArgument>("unknown balance '{}'{}: even, watch or auto", name, did_you_mean(name, names));
}

namespace {

/// Where a rank's own computing is not what a step waits for, or not what can be divided.
void check_balance(const ParallelOptions& options) {
  if (options.balance == Balancing::even) return;
  const std::string what = "balance " + balancing_names()[static_cast<size_t>(options.balance)];
  if (!options.exchange.sync.lockstep())
    fail<InvalidArgument>(
        "{} is for workers that wait for one another in every step, and with sync '{}' each goes at its own pace: who "
        "is faster does more by itself. Leave out balance",
        what, exchange::name_of(options.exchange.sync));
  if (options.exchange.virtual_workers > 0)
    fail<InvalidArgument>(
        "{} changes how many samples a worker computes at a time, and with virtual {} no bit may depend on that: leave "
        "out one of them",
        what, options.exchange.virtual_workers);
  if (options.sync_batch_norm)
    fail<InvalidArgument>(
        "{} measures each worker's own passes, and with sync_batch_norm workers wait for one another in the middle of "
        "them: leave out one of them",
        what);
  if (!(options.balance_stint.count() >= 0))
    fail<InvalidArgument>("balance_stint is a time of at least 0 s, not {:g} s", options.balance_stint.count());
}

}  // namespace

void check(const ParallelOptions& options) {
  exchange::check(options.exchange);
  if (options.accumulate < 1) fail<InvalidArgument>("accumulate must be at least 1, not {}", options.accumulate);
  if (const double seconds = options.step_timeout.timeout.count(); !(seconds >= 0))
    fail<InvalidArgument>("{} must be at least 0 s (0: no limit), not {:g}", options.step_timeout.setting, seconds);
  if (options.exchange.virtual_workers > 0 && options.accumulate > 1)
    fail<InvalidArgument>(
        "virtual {} and accumulate {} both cut a step into smaller passes: leave out accumulate, and use virtual {} "
        "for "
        "as little memory",
        options.exchange.virtual_workers, options.accumulate, options.exchange.virtual_workers * options.accumulate);
  if (options.exchange.virtual_workers > 0 && options.sync_batch_norm)
    fail<InvalidArgument>(
        "sync_batch_norm uses the samples of those who compute at the same time, and with virtual {} bits must not "
        "depend on who that is: leave out one of them",
        options.exchange.virtual_workers);
  check_balance(options);
  if (options.sync_batch_norm && !options.exchange.sync.lockstep())
    fail<InvalidArgument>(
        "sync_batch_norm needs workers that take every step together, and with sync '{}' each goes at its own pace",
        exchange::name_of(options.exchange.sync));
}

}  // namespace trireme
