// The agent of a host: registers, starts its ranks, and tells the others how they ended.
#include <sys/eventfd.h>
#include <unistd.h>

#include <trireme/base/descriptor.h>
#include <trireme/base/error.h>
#include <trireme/cluster/coordinator.h>
#include <trireme/cluster/hosts.h>
#include <trireme/cluster/session.h>

namespace trireme::cluster {
namespace {

/// Where programs with torchrun's variables meet: a port that is free on the host of rank 0.
std::string meeting_point(Session& session, Seconds timeout) {
  if (session.rank() == 0) session.put("torchrun meeting point", fmt::format("{}:{}", session.address(), free_port()));
  return session.get("torchrun meeting point", Deadline(timeout));
}

}  // namespace

LaunchResult run_agent(const AgentOptions& options) {
  const SignalsForLauncher signals;
  const Descriptor failed(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  Session session({.coordinator = options.coordinator, .token = options.token, .tls = options.tls, .timeout = options.timeout},
                  {.kind = Member::agent, .slots = options.slots, .host = options.host.empty() ? own_host_name() : options.host, .pid = getpid()});
  session.on_failure([&](const Failure&) {
    const uint64_t one = 1;
    [[maybe_unused]] const auto written = write(failed.get(), &one, sizeof one);
  });
  const std::string meeting = meeting_point(session, options.timeout);
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
  return result;
}

}  // namespace trireme::cluster
