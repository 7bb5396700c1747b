#include <fmt/format.h>

#include <algorithm>
#include <cstdio>

#include <trireme/base/error.h>

#include "commands.h"
#include "hosts.h"

namespace trireme::tools {
namespace {

std::string not_empty(const std::string& text) { return text.empty() ? "names no host. Example: --hosts a:2,b:2" : ""; }

void tell_by_hand(const std::string& host, const std::string& command, const std::string& new_token) {
  if (new_token.empty())
    fmt::print("start on host {}, with TRIREME_TOKEN as it is here:  {}\n", host, command);
  else
    fmt::print("start on host {}:  TRIREME_TOKEN={} {}\n", host, new_token, command);
  std::fflush(stdout);
}

}  // namespace

void add_hosts_flags(CLI::App& app, HostsFlags& flags) {
  const char* group = "Several hosts";
  app.add_option("--hosts", flags.hosts, "Hosts and the ranks on each, such as a:2,b:2")
      ->group(group)
      ->check(not_empty);
  app.add_option("--hostfile", flags.hostfile, "The same from a file, a host a line: a slots=2")
      ->group(group)
      ->excludes("--hosts")
      ->check(not_empty);
  app.add_option("--remote", flags.remote,
                 "How to run a command on a host; {host} and {command} are filled in. none: says what to start there, "
                 "and waits")
      ->group(group)
      ->capture_default_str();
  app.add_option("--address", flags.address,
                 "Of this host, as the others reach it (default: that of the way to the first of them)")
      ->group(group);
  app.add_option("--port", flags.port, "Of the coordinator, which runs in this process; 0: any that is free")
      ->group(group)
      ->capture_default_str();
  app.add_option("--tls", flags.tls,
                 "Folder of certificates (`trireme tls init`), the same path on all hosts: encrypts and authenticates "
                 "the coordination")
      ->group(group);
  app.add_option(
         "--heartbeat-limit", flags.heartbeat_limit,
         "Seconds of silence after which a host counts as dead; of workers that may die and come, also a worker "
         "(on one machine: 30)")
      ->group(group)
      ->each([&flags](const std::string&) { flags.heartbeat_given = true; })
      ->capture_default_str();
}

int HostsFlags::ranks() const {
  int ranks = 0;
  for (const auto& [name, slots] : options("").hosts) ranks += slots;
  return ranks;
}

void check_heartbeat_limit(double seconds) {
  if (!(seconds >= 0.5 && seconds <= 3600))
    fail<InvalidArgument>("--heartbeat-limit must be 0.5 to 3600 seconds, not {}", seconds);
}

cluster::HostsOptions HostsFlags::options(const std::string& program) const {
  check_heartbeat_limit(heartbeat_limit);
  if (port < 0 || port > 65535) fail<InvalidArgument>("--port must be 0 to 65535, not {}", port);
  if (remote != cluster::kByHand)
    cluster::remote_command(remote, "", {});  // a template that is wrong is wrong on one host too
  return {.hosts = hostfile.empty() ? cluster::parse_hosts(hosts) : cluster::read_hostfile(hostfile),
          .remote = remote,
          .program = program,
          .address = address,
          .port = port,
          .tls = tls,
          .heartbeat_limit = Seconds(heartbeat_limit),
          .by_hand = tell_by_hand};
}

void refuse_without_hosts(const CLI::App& command, const HostsFlags& flags, bool elastic) {
  if (flags.given()) return;
  for (const std::string flag : {"--remote", "--address", "--port", "--tls", "--heartbeat-limit"})
    if (command.count(flag) > 0 && !(elastic && flag == "--heartbeat-limit"))
      fail<InvalidArgument>("{} has no effect without --hosts or --hostfile: all ranks are on this machine", flag);
}

void explain_end(const cluster::LaunchResult& result, bool first_spoke) {
  constexpr size_t kShown = 20;
  const auto& losses = result.losses;
  for (size_t i = 0; i < std::min(losses.size(), kShown); i++)
    print_error(fmt::format("{} was lost; the others went on without it: {} (after {:.1f} s)", losses[i].who,
                            losses[i].how, losses[i].after));
  if (losses.size() > kShown) print_error(fmt::format("{} more were lost", losses.size() - kShown));
  if (!result.lost.empty()) print_error(result.lost);
  if (result.culprit.empty() || result.interrupted || first_spoke) return;
  const std::string label = result.first_failed >= 0 ? std::to_string(result.first_failed) : result.culprit;
  print_error(result.reason);
  if (!result.last_lines.empty()) std::fputs("its last lines:\n", stderr);
  for (const std::string& line : result.last_lines) std::fputs(fmt::format("  [{}] {}\n", label, line).c_str(), stderr);
}

}  // namespace trireme::tools
