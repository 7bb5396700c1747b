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

/// Sends "delay WORKER MS" or "delay WORKER MS MODEL" and returns the answer. Throws InvalidArgument when the server
/// does not like it, PeerLost, Timeout.
std::string control(const Found& server, const std::string& words, Seconds timeout);

}  // namespace trireme::ps
