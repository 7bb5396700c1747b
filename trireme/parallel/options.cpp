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
        "sync-batch-norm uses the samples of those who compute at the same time, and with virtual {} bits must not "
        "depend on who that is: leave out one of them",
        options.exchange.virtual_workers);
  if (options.sync_batch_norm && !options.exchange.sync.lockstep())
    fail<InvalidArgument>(
        "sync-batch-norm needs workers that take every step together, and with sync '{}' each goes at its own pace",
        exchange::name_of(options.exchange.sync));
}

}  // namespace trireme
