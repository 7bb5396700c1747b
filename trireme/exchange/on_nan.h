#pragma once
// What becomes of a run whose loss or gradient is NaN or infinite.
#include <cstdint>
#include <string>
#include <vector>

namespace trireme::exchange {

enum class OnNan : uint8_t {
  stop,     // every rank gets an error that says who had it, when, and where (the default)
  ignore,   // go on as if it were a number; nothing is looked at
  skip,     // the update is not made at all, as if its batch had not been there: no update begins before all gradients
            // are known to be finite, as with Options::clip
  rollback  // stop for an exchange and for Parallel; who trains goes back to a checkpoint (train/policy.h)
};

/// "stop", "ignore", "skip", "rollback"; throws InvalidArgument with the nearest valid name.
OnNan on_nan_named(const std::string& name);
std::string name_of(OnNan what);
std::vector<std::string> on_nan_names();

}  // namespace trireme::exchange
