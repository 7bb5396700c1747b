// The agent of a host: registers, starts its ranks, and tells the others how they ended.
#include <sys/eventfd.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <utility>

#include <trireme/base/descriptor.h>
#include <trireme/base/error.h>
#include <trireme/cluster/coordinator.h>
#include <trireme/cluster/hosts.h>
#include <trireme/cluster/session.h>

namespace trireme::cluster {
namespace {

constexpr Seconds kBetweenLooks{0.5};  // at signals, while hosts are waited for

/// Where programs with torchrun's variables meet: a port that is free on the host of rank 0.
std::string meeting_point(Session& session, Seconds timeout) {
  if (session.rank() == 0) session.put("torchrun meeting point", fmt::format("{}:{}", session.address(), free_port()));
  return session.get("torchrun meeting point", Deadline(timeout));
}

/// launch() takes signals later. Until then they are held, and somebody who waits has to look.
bool interrupted() {
  sigset_t held;
  return sigpending(&held) == 0 && (sigismember(&held, SIGINT) == 1 || sigismember(&held, SIGTERM) == 1);
}

/// Readable while one of them is held. It is never read: the signal stays for whoever takes it.
Descriptor pending_signals() {
  sigset_t set;
  sigemptyset(&set);
  for (int signal : {SIGINT, SIGTERM, SIGHUP}) sigaddset(&set, signal);
  return Descriptor(signalfd(-1, &set, SFD_CLOEXEC));
}

bool came(Session& session, const std::string& key, Seconds within) {
  try {
    session.get(key, Deadline(within));
    return true;
  } catch (const Timeout&) {
    return false;
  }
}

/// Ranks are started when the agents of all hosts are there: so it is the host that does not come that is named, and not its ranks.
void wait_for_hosts(Session& session, const AgentOptions& options) {
  session.put(fmt::format("agent/{}", session.rank()), "");
  const Deadline deadline(options.timeout);
  int first = 0;
  for (const auto& [host, slots] : session.spec().hosts) {
    const std::string key = fmt::format("agent/{}", std::exchange(first, first + slots));
    while (!came(session, key, std::min(kBetweenLooks, deadline.left()))) {
      if (interrupted())
        fail<PeerLost>("the agent of host {} was interrupted while it waited for host {}", own_host_name(), host);  // by a launcher that knows why
      if (deadline.passed())
        fail<Timeout>("host {} has not joined the job within {:g} s: is it up, was `trireme join` started there, and can it reach the coordinator at {}?", host,
                      options.timeout.count(), options.coordinator);
    }
  }
}

/// What has to be right before ranks are started; the others hear what is not.
std::string prepare(Session& session, const AgentOptions& options) try {
  if (session.spec().command.empty())
    fail<InvalidArgument>(
        "host {}: the coordinator at {} has nothing for agents to start: it serves ranks that are started one by one, with TRIREME_RANK. `trireme train "
        "--hosts ... "
        "--remote none` is what `trireme join` joins",
        own_host_name(), options.coordinator);
  wait_for_hosts(session, options);
  return meeting_point(session, options.timeout);
} catch (const PeerLost&) {
  session.leave(kPeerLostExit);
  throw;
} catch (const Error& error) {
  session.leave(1, error.what());
  throw;
}

}  // namespace

LaunchResult run_agent(const AgentOptions& options) {
  const SignalsForLauncher signals;
  const Descriptor failed(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  const Descriptor pending = pending_signals();
  Session session({.coordinator = options.coordinator, .token = options.token, .tls = options.tls, .timeout = options.timeout, .interrupt = pending.get()},
                  {.kind = Member::agent, .slots = options.slots, .host = options.host.empty() ? own_host_name() : options.host, .pid = getpid()});
  session.on_failure([&](const Failure&) {
    const uint64_t one = 1;
    [[maybe_unused]] const auto written = write(failed.get(), &one, sizeof one);
  });
  const std::string meeting = prepare(session, options);
  const size_t colon = meeting.rfind(':');
  LaunchOptions launched{.command = session.spec().command,
                         .ranks = session.slots(),
                         .show = static_cast<Show>(session.spec().show),
                         .environment = session.spec().environment,
                         .first_rank = session.rank(),
                         .size = session.size(),
                         .job = session.job(),
                         .master = meeting.substr(0, colon),
                         .master_port = std::stoi(meeting.substr(colon + 1)),
                         .failed = failed.get(),
                         .hangup = options.watch_input ? 0 : -1};
  launched.environment.emplace_back("TRIREME_COORDINATOR", options.coordinator);
  launched.environment.emplace_back("TRIREME_TOKEN", options.token);
  if (!options.tls.empty()) launched.environment.emplace_back("TRIREME_TLS", options.tls);
  LaunchResult result = launch(launched);
  std::string reason = result.reason;
  for (const std::string& line : result.last_lines) reason += "\n  " + line;
  session.leave(result.exit_code, reason, result.first_failed);
  if (const auto failure = session.failure(); failure && result.exit_code == kPeerLostExit) {
    result.reason = failure->reason;
    result.last_lines.clear();
  }
  return result;
}

}  // namespace trireme::cluster
