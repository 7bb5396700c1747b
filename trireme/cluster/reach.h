#pragma once
// The way to a coordinator.
#include <string>

#include <trireme/base/clock.h>
#include <trireme/base/descriptor.h>

namespace trireme::cluster {

struct Endpoint {
  std::string host, port;
};

/// "host:port" or "[::1]:port". Throws InvalidArgument.
Endpoint endpoint_of(const std::string& text);

/// A connection made by hand: it says what is wrong where gRPC only says "unavailable", and what our own address is.
struct Reached {
  Descriptor socket;
  std::string target;   // for gRPC: "ipv4:10.0.0.1:4242"
  std::string address;  // of our side
  std::string fault;    // why not, when there is no socket
};

/// Tries all of the name's addresses. Blocks until the deadline, or until `interrupt` (a descriptor, or -1) becomes readable; the lookup of the name takes
/// what it takes.
Reached reach(const Endpoint& endpoint, const Deadline& deadline, int interrupt = -1);

}  // namespace trireme::cluster
