#pragma once
// How often something happens: every so many steps, seconds or epochs.
#include <cstdint>
#include <string>

namespace trireme {

/// What is 0 does not count; of several, whichever comes first.
struct Every {
  int64_t steps = 0;
  double seconds = 0;
  int64_t epochs = 0;
  bool operator==(const Every&) const = default;
};

/// "500steps", "1epoch", or a time as duration_named() reads it, with its unit: "10min", "90s", "1.5h". Throws
/// InvalidArgument that says what is possible.
Every every_named(const std::string& text);
std::string name_of(const Every& every);

}  // namespace trireme
