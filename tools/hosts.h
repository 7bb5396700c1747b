#pragma once
// Flags of commands that start ranks on several hosts.
#include <CLI/CLI.hpp>

#include <trireme/cluster/launching/hosts.h>

namespace trireme::tools {

struct HostsFlags {
  std::string hosts, hostfile, remote = cluster::kDefaultRemote, address, tls;
  int port = 0;
  double heartbeat_limit = 3;
  bool heartbeat_given = false;

  bool given() const { return !hosts.empty() || !hostfile.empty(); }
  /// Slots of all of them.
  int ranks() const;
  /// Throws InvalidArgument for what cannot be meant.
  cluster::HostsOptions options(const std::string& program) const;
};

void add_hosts_flags(CLI::App& app, HostsFlags& flags);

/// Throws InvalidArgument for flags that only do something with --hosts or --hostfile, where there are neither.
/// `elastic`: workers may die and come.
void refuse_without_hosts(const CLI::App& command, const HostsFlags& flags, bool elastic = false);

/// Throws InvalidArgument for a time that cannot be meant.
void check_heartbeat_limit(double seconds);

/// Prints who was lost on the way; why a job ended badly, unless rank 0 has said it itself; and which model was lost
/// when somebody interrupted it.
void explain_end(const cluster::LaunchResult& result, bool first_spoke);

}  // namespace trireme::tools
