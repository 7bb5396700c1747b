#pragma once
// Talking to the servers of a running job on this machine from outside: what `trireme ctl` does.
#include <string>
#include <vector>

#include <trireme/base/clock.h>

namespace trireme::ps {

/// A server of this user on this machine.
struct Found {
  std::string job;  // 16 hexadecimal digits: the name of its door
  int server = 0;
};

/// All of them, by job and number.
std::vector<Found> find_servers();

/// Sends "delay WORKER MS", "delay WORKER MS MODEL", "servers" (who keeps what) or, where servers have replicas,
/// "digest" (the same with a SHA-256 of all that is known of each part), and returns the answer. Throws InvalidArgument
/// when the server does not like it, PeerLost, Timeout.
std::string control(const Found& server, const std::string& words, Seconds timeout);

}  // namespace trireme::ps
