#pragma once
// Advice that depends on the program at hand: a command has flags, a program that uses the library has options.
#include <string>

#include <trireme/base/clock.h>

namespace trireme {

/// How long waits for another process may take, and what the user of this program calls that.
struct WaitLimit {
  Seconds timeout{60};
  std::string setting{};
};

/// The end of an error message about a wait that took too long. `setting` is what the user of this program calls its
/// time limit, such as "--timeout" or "JoinOptions::timeout"; "": there is none.
inline std::string longer_helps(const std::string& setting) {
  return setting.empty() ? "" : ". A longer " + setting + " helps if somebody is only slow";
}

}  // namespace trireme
