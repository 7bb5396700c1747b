#pragma once
// Durations as people write them: one reader for all flags and options. Pure.
#include <string>

#include <trireme/base/clock.h>

namespace trireme {

/// "30s", "10m" or "10min", "1h", "250ms", "90" (seconds), "1.5h". More than 0 and at most ten years. Throws
/// InvalidArgument that begins with `what` ("--step-timeout") and says what is allowed.
Seconds duration_named(const std::string& text, const std::string& what);

/// The shortest such text: "10m", "1.5h", "250ms".
std::string duration_text(Seconds duration);

}  // namespace trireme
