#include <algorithm>
#include <cmath>

#include <trireme/base/error.h>
#include <trireme/exchange/options.h>
#include <trireme/exchange/tree.h>

namespace trireme::exchange {

size_t window_of(const Options& options, size_t parameter_bytes, size_t largest_bucket) {
  if (options.zero_window == 0) return std::max(4 * largest_bucket, parameter_bytes / 8);
  return std::max(options.zero_window, 2 * largest_bucket);
}

std::string codec_name(const Options& options) {
  return options.chooses() ? compress::auto_name(options.candidates) : compress::name_of(options.codec);
}

std::string what_codes(const Options& options) {
  return options.own_codec ? "a codec" : fmt::format("compress {}", codec_name(options));
}

namespace {

void check_virtual(const Options& options) {
  check_runs(options.virtual_workers, 1);
  const std::string what = fmt::format("virtual {} sums gradients in one fixed order", options.virtual_workers);
  if (options.sync != Sync::shared)
    fail<InvalidArgument>("{}, and sync '{}' has another one, or none: use sync 'shared', or leave out virtual", what,
                          name_of(options.sync));
  if (options.zero > 0)
    fail<InvalidArgument>(
        "{}, and zero {} divides them among all ranks in another one: use zero 0, or leave out "
        "virtual",
        what, options.zero);
}

void check_choosing_alone(const Options& options) {
  if (options.codec || options.own_codec)
    fail<InvalidArgument>("{} chooses among codecs, and another one is set besides: leave out one of them",
                          what_codes(options));
  if (options.sync != Sync::shared)
    fail<InvalidArgument>("{} chooses in sync 'shared' alone, not with sync '{}': name one codec, or use sync 'shared'",
                          what_codes(options), name_of(options.sync));
}

void check_codec(const Options& options) {
  compress::check(options.codec);
  compress::check(options.candidates);
  if (!options.codes()) {
    if (!options.codec_excludes.empty())
      fail<InvalidArgument>(
          "parameters are excluded from compression ('{}'), and nothing is compressed: say by which codec",
          options.codec_excludes.front());
    return;
  }
  if (options.chooses()) return check_choosing_alone(options);
  const std::string what = what_codes(options);
  const auto refuse = [&](const std::string& other, const char* instead) {
    fail<InvalidArgument>("{} is not there yet with {}: {}", what, other, instead);
  };
  if (options.sync != Sync::shared && options.sync != Sync::allreduce && !options.sync.pushes())
    refuse(fmt::format("sync '{}'", name_of(options.sync)),
           "use sync 'shared' or 'allreduce', a mode with parameter servers, or leave out compress");
  if (options.own_codec && options.sync.pushes())
    fail<InvalidArgument>(
        "parameter servers have no codec of a program's own, and sync '{}' pushes to them: use sync 'shared' or "
        "'allreduce', or one of Trireme's codecs",
        name_of(options.sync));
  if (options.virtual_workers > 0)
    fail<InvalidArgument>(
        "{} rounds each machine's sum, and with virtual {} no bit may depend on the machines: leave out "
        "one of them",
        what, options.virtual_workers);
  if (options.elastic)
    refuse("a crew that changes",
           "what codecs keep for later would be lost with a worker. Let a loss end the job (--on-failure stop "
           "of `trireme launch` or `train`), or leave out compress");
}

}  // namespace

void check_choosing(const Options& options) {
  const auto refuse = [&](const std::string& other, const char* instead) {
    fail<InvalidArgument>("{} on several machines is not there yet with {}: {}", what_codes(options), other, instead);
  };
  if (options.zero > 0) refuse(fmt::format("zero {}", options.zero), "leave out one of them");
  if (options.virtual_workers > 0)
    fail<InvalidArgument>(
        "{} chooses codecs by the clock, which round each machine's sum, and with virtual {} no bit may depend on "
        "either: leave out one of them",
        what_codes(options), options.virtual_workers);
  if (options.elastic)
    refuse("a crew that changes",
           "let a loss end the job (--on-failure stop of `trireme launch` or `train`), or leave out compress");
}

void check(const Options& options) {
  if (options.zero < 0 || options.zero > 3)
    fail<InvalidArgument>("zero must be a stage from 0 (none) to 3, not {}", options.zero);
  if (options.zero > 0 && options.sync != Sync::shared)
    fail<InvalidArgument>(
        "ZeRO (zero {}) divides one update among all ranks, and sync '{}' {}: use sync 'shared', or zero 0",
        options.zero, name_of(options.sync),
        options.sync.lockstep() ? "makes it elsewhere" : "has no lockstep: each rank makes updates of its own");
  if (options.elastic && options.sync != Sync::shared)
    fail<InvalidArgument>("a crew that changes needs sync 'shared', not '{}'", name_of(options.sync));
  if (options.virtual_workers != 0) check_virtual(options);
  check_codec(options);
  check_rate(options.sync, options.rate);
  if (!(options.clip >= 0) || !std::isfinite(options.clip))
    fail<InvalidArgument>("clip must be a norm of at least 0 (0: none), not {}", options.clip);
  if (options.chunk_bytes == 0) fail<InvalidArgument>("chunk_bytes must be at least 1");
  if (!std::isfinite(options.lambda)) fail<InvalidArgument>("lambda must be a number, not {}", options.lambda);
}

}  // namespace trireme::exchange
