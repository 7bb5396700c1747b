#include <fmt/format.h>

#include <cstdio>
#include <cstdlib>
#include <string_view>

#include <trireme/base/error.h>

#include "preflight.h"

namespace trireme::tools {
namespace {

constexpr std::string_view kErrorPrefix = "trireme: ";  // of print_error()
constexpr Seconds kToJoin{20};                          // for a host's agent, once it runs

void problem(const std::string& text) {
  fmt::print("PROBLEM  {}\n", text);
  std::fflush(stdout);
}

cluster::LaunchResult start_probes(cluster::HostsOptions options, const cluster::Hosts& hosts) {
  options.hosts = hosts;
  const cluster::LaunchResult result = cluster::launch_on_hosts(options);
  if (result.interrupted) std::exit(result.exit_code);
  return result;
}

/// The last line of ssh or of the agent there; if there is none, how it ended.
std::string what_it_said(const cluster::LaunchResult& result) {
  const std::string said = result.last_lines.empty() ? result.reason : result.last_lines.back();
  return said.starts_with(kErrorPrefix) ? said.substr(kErrorPrefix.size()) : said;
}

/// Starts a probe there that has nobody to talk to: "", or why it does not run. A host by itself, because of several
/// the failure of one is the end of all.
std::string fault_of(const cluster::HostsOptions& options, const std::string& host) {
  try {
    const cluster::LaunchResult result = start_probes(options, {{host, 1}});
    if (result.exit_code == 0) return "";
    return fmt::format("host {} is of no use: {} - Try by hand: {}", host, what_it_said(result),
                       fmt::join(cluster::remote_command(options.remote, host, {options.program, "--version"}), " "));
  } catch (const InvalidArgument& error) {  // a name that nobody knows
    return error.what();
  }
}

/// Those that start a probe; the others are named.
cluster::Hosts usable_hosts(const cluster::HostsOptions& options) {
  if (options.remote == cluster::kByHand) return options.hosts;  // nobody wants to start them twice
  cluster::Hosts usable;
  for (const auto& [host, slots] : options.hosts) {
    fmt::print(stderr, "looking at host {}\n", host);
    const std::string fault = fault_of(options, host);
    fault.empty() ? usable.emplace_back(host, 1), void() : problem(fault);
  }
  return usable;
}

}  // namespace

int preflight(const HostsFlags& flags, const std::string& program) {
  cluster::HostsOptions options = flags.options(program);
  for (auto& [host, slots] : options.hosts) slots = 1;
  options.command = {program, "doctor", "--probe"};
  options.show = cluster::Show::first;
  options.timeout = kToJoin;
  fmt::print("trireme {}, preflight of {} host{}\n", TRIREME_VERSION, options.hosts.size(),
             options.hosts.size() == 1 ? "" : "s");
  std::fflush(stdout);
  const cluster::Hosts usable = usable_hosts(options);
  bool well = usable.size() == options.hosts.size();
  if (usable.size() > 1) {
    fmt::print(stderr, "measuring {} links, one at a time\n", usable.size() * (usable.size() - 1));
    const cluster::LaunchResult result = start_probes(options, usable);
    if (result.exit_code != 0 && result.exit_code != kProblemsExit)
      problem(fmt::format("the links could not be measured: {}", result.reason));
    well = well && result.exit_code == 0;
  }
  fmt::print("\n{}\n", well ? "ready to train on these hosts" : "see what to do above, then run this again");
  return well ? 0 : 1;
}

}  // namespace trireme::tools
