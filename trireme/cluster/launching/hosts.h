#pragma once
// Starting a job on several hosts: an agent (`trireme join`) on each, which starts the ranks and servers there.
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <trireme/base/clock.h>
#include <trireme/cluster/launching/launcher.h>

namespace trireme::cluster {

using Hosts = std::vector<std::pair<std::string, int>>;  // name or address, ranks

/// "a:2,b:2"; a host without a number has one rank. Throws InvalidArgument.
Hosts parse_hosts(const std::string& text);
/// A host a line: "a", "a:2", "a 2" or "a slots=2"; # begins a comment. Throws IoError, or InvalidArgument with file
/// and line.
Hosts read_hostfile(const std::string& path);

/// The words of `remote` with {host} replaced; the word {command} becomes the words of `command`. ssh hands all to a
/// shell, so they are quoted for it when the first word is ssh. Throws InvalidArgument when {host} or {command} is
/// missing.
std::vector<std::string> remote_command(const std::string& remote, const std::string& host,
                                        const std::vector<std::string>& command);

constexpr const char* kDefaultRemote = "ssh -o BatchMode=yes -o ConnectTimeout=10 {host} {command}";
constexpr const char* kByHand = "none";  // as `remote`: a person starts the agents of the other hosts

struct HostsOptions {
  Hosts hosts;
  std::string remote = kDefaultRemote;      // how to run a command on a host
  std::string program;                      // `trireme` there
  std::vector<std::string> command;         // of every rank
  std::vector<std::string> server_command;  // of every parameter server
  int servers = 0;                          // of the job: server s is started on host number s % hosts
  std::vector<std::pair<std::string, std::string>> environment;
  std::string address;         // of this host, as the others reach it; "": found out
  std::string token;           // the job's secret; "": a new one
  int port = 0;                // of the coordinator; 0: any
  std::string tls;             // folder of certificates, here and there; "": none
  Seconds heartbeat_limit{3};  // silence that counts as death
  Elasticity elasticity;       // LaunchOptions::elasticity; `most` over all hosts. Spares are not kept on hosts
  Seconds timeout{60};         // for the agents to find the coordinator and each other
  Show show = Show::labelled;
  std::function<void(const std::string&)> say;  // LaunchOptions::say
  std::optional<std::string> saves;             // LaunchOptions::saves
  /// With kByHand: hears of every other host what to start there. `new_token` is "" when the user gave the token.
  std::function<void(const std::string& host, const std::string& command, const std::string& new_token)> by_hand;
};

/// Runs the coordinator in this process and an agent on every host, and stays until all have ended. The token goes to
/// the agents through their standard input. With kByHand it starts only this host's agent, and the others have ten
/// minutes to come. The reason of a failure names rank and host. Throws InvalidArgument for hosts that cannot be found,
/// IoError when the port is taken.
LaunchResult launch_on_hosts(const HostsOptions& options);

struct AgentOptions {
  std::string coordinator, token, tls;
  std::string host;  // as the host list names this one; "": its host name
  int slots = 0;     // ranks to start; 0: what the host list says; of a host that comes later, one
  Seconds timeout{60};
  bool watch_input = false;  // standard input is LaunchOptions::hangup: from whoever started this agent, and its end
                             // says that they are gone
  std::function<void(const std::string&)> say;  // LaunchOptions::say
};

/// Registers this host, starts its ranks and stays with them. To a job that is under way, whose workers may come and
/// go, they come as newcomers.
LaunchResult run_agent(const AgentOptions& options);

}  // namespace trireme::cluster
