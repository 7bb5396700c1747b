#include <cmath>

#include <trireme/base/error.h>
#include <trireme/exchange/options.h>

namespace trireme::exchange {

void check(const Options& options) {
  check_rate(options.sync, options.rate);
  if (!(options.clip >= 0) || !std::isfinite(options.clip))
    fail<InvalidArgument>("clip must be a norm of at least 0 (0: none), not {}", options.clip);
  if (options.chunk_bytes == 0) fail<InvalidArgument>("chunk_bytes must be at least 1");
  if (!std::isfinite(options.lambda)) fail<InvalidArgument>("lambda must be a number, not {}", options.lambda);
}

}  // namespace trireme::exchange
