#pragma once
// Flags of commands that start ranks on several hosts.
#include <CLI/CLI.hpp>

#include <trireme/cluster/launching/hosts.h>

namespace trireme::tools {

struct HostsFlags {
  std::string hosts, hostfile, remote = cluster::kDefaultRemote, address, tls;
  int port = 0;
  double heartbeat_limit = 3;

  bool given() const { return !hosts.empty() || !hostfile.empty(); }
  /// Throws InvalidArgument for what cannot be meant.
  cluster::HostsOptions options(const std::string& program) const;
};

void add_hosts_flags(CLI::App& app, HostsFlags& flags);

/// Throws InvalidArgument for flags that only do something with --hosts or --hostfile, where there are neither.
void refuse_without_hosts(const CLI::App& command, const HostsFlags& flags);

/// Prints why a job ended badly, unless rank 0 has said it itself, and which model was lost when somebody interrupted
/// it.
void explain_end(const cluster::LaunchResult& result, bool first_spoke);

}  // namespace trireme::tools
