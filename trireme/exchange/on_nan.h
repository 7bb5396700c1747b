#pragma once
// What becomes of a run whose loss or gradient is NaN or infinite.
#include <cstdint>
#include <string>
#include <vector>

namespace trireme::exchange {

enum class OnNan : uint8_t {
  stop,   // every rank gets an error that says who had it, when, and where (the default)
  ignore  // go on as if it were a number; nothing is looked at
};

/// "stop", "ignore"; throws InvalidArgument with the nearest valid name.
OnNan on_nan_named(const std::string& name);
std::string name_of(OnNan what);
std::vector<std::string> on_nan_names();

}  // namespace trireme::exchange
