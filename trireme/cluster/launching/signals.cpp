#include "signals.h"

#include <sys/signalfd.h>

#include <trireme/cluster/launching/launcher.h>

namespace trireme::cluster {
namespace {

constexpr int kCaught[] = {SIGINT, SIGTERM, SIGHUP};

sigset_t caught_signals() {
  sigset_t caught;
  sigemptyset(&caught);
  for (int signal : kCaught) sigaddset(&caught, signal);
  struct sigaction hangup {};
  if (sigaction(SIGHUP, nullptr, &hangup) == 0 && hangup.sa_handler == SIG_IGN)
    sigdelset(&caught, SIGHUP);  // nohup: a closed terminal does not matter
  return caught;
}

}  // namespace

CaughtSignals::CaughtSignals() {
  const sigset_t caught = caught_signals();
  pthread_sigmask(SIG_BLOCK, &caught, &before_);
  arrived_ = Descriptor(signalfd(-1, &caught, SFD_CLOEXEC));
  of_children_ = before_;
  for (int signal : kCaught) sigdelset(&of_children_, signal);
  struct sigaction ignore {};
  ignore.sa_handler = SIG_IGN;
  sigaction(SIGPIPE, &ignore, &broken_pipe_);  // nobody reads our output any more: the job goes on
}

CaughtSignals::~CaughtSignals() {
  sigaction(SIGPIPE, &broken_pipe_, nullptr);
  pthread_sigmask(SIG_SETMASK, &before_, nullptr);
}

SignalsForLauncher::SignalsForLauncher() {
  const sigset_t caught = caught_signals();
  pthread_sigmask(SIG_BLOCK, &caught, &before_);
}

SignalsForLauncher::~SignalsForLauncher() { pthread_sigmask(SIG_SETMASK, &before_, nullptr); }

}  // namespace trireme::cluster
