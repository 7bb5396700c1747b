#include <trireme/base/error.h>
#include <trireme/parallel/options.h>

namespace trireme {

void check(const ParallelOptions& options) {
  exchange::check(options.exchange);
  if (options.accumulate < 1) fail<InvalidArgument>("accumulate must be at least 1, not {}", options.accumulate);
  if (options.sync_batch_norm && !options.exchange.sync.lockstep())
    fail<InvalidArgument>(
        "sync-batch-norm needs workers that take every step together, and with sync '{}' each goes at its own pace",
        exchange::name_of(options.exchange.sync));
}

}  // namespace trireme
