#pragma once
// What a launcher does with the first Ctrl-C: it asks the ranks to stop, waits as long as they get on with it, and
// knows afterwards what was saved and what is lost. For launcher.cpp. Not installed.
#include <optional>
#include <span>
#include <string>
#include <vector>

#include <trireme/base/clock.h>
#include <trireme/cluster/launching/child.h>

namespace trireme::cluster {

// On the standard input of processes that start ranks elsewhere (LaunchOptions::input), instead of signals, which would
// end an ssh and not what it has started.
constexpr const char* kStopWord = "stop\n";
constexpr const char* kEndWord = "end\n";

/// Sends the signal to every process of the group. One that has no handler for it, but for another signal that asks a
/// program to end, gets that one: whoever saves at Ctrl-C saves too when the terminal is closed.
void ask_to_stop(pid_t group, int signal);

/// Whether processes get on with something: they say so themselves (slate.h), use a processor, or wait for a disk.
class Headway {
 public:
  explicit Headway(const std::vector<Child>& children) : children_(children) { made(); }
  /// Since the last call, and since the construction at first.
  bool made();

 private:
  const std::vector<Child>& children_;
  uint64_t beats_ = 0;
  double cpu_seconds_ = 0;
  Clock::time_point looked_ = Clock::now();
};

/// What is said at the first signal. `saves`: see LaunchOptions.
std::string stop_sentence(int signal, const std::optional<std::string>& saves);

/// Of ranks that were asked to stop at `asked_at` (on the clock of slates) and have ended: which model was not saved,
/// or "" when none is missing. With `at_once`, after a second signal, always a sentence.
std::string lost_sentence(const std::vector<Child>& children, double asked_at, const std::optional<std::string>& saves,
                          bool at_once);

/// "rank 1 has", "rank 0 and rank 1 have": ranks that have not ended, for a sentence.
std::string unended(std::span<const Child> children);

}  // namespace trireme::cluster
