#pragma once
// The signals that a launcher hears on behalf of what it has started. For launcher.cpp. Not installed.
#include <csignal>

#include <trireme/base/descriptor.h>

namespace trireme::cluster {

/// While this lives SIGINT, SIGTERM and SIGHUP come to a descriptor, and nobody who reads our output is no reason to
/// end. A SIGHUP that is ignored (nohup) stays so.
class CaughtSignals {
 public:
  CaughtSignals();
  ~CaughtSignals();
  CaughtSignals(const CaughtSignals&) = delete;
  CaughtSignals& operator=(const CaughtSignals&) = delete;

  /// A signalfd.
  int descriptor() const { return arrived_.get(); }
  /// What a process that is started has as its mask, and does on SIGPIPE.
  const sigset_t& of_children() const { return of_children_; }
  const struct sigaction& broken_pipe() const { return broken_pipe_; }

 private:
  sigset_t before_{}, of_children_{};
  struct sigaction broken_pipe_ {};
  Descriptor arrived_;
};

}  // namespace trireme::cluster
