#pragma once
// Connections made by hand: they say what is wrong where gRPC only says "unavailable".
#include <optional>
#include <string>

#include <trireme/base/clock.h>
#include <trireme/base/descriptor.h>
#include <trireme/cluster/coordination/tls.h>

namespace trireme::cluster {

/// What the address of a unix socket without a file begins with; its name follows.
inline const std::string kUnixSocket = "unix-abstract:";

struct Endpoint {
  std::string host, port;  // of a unix socket: the whole address, and ""
};

/// Of "host:port", "[address]:port" or a unix socket. Throws InvalidArgument, which calls it the address of `whom`.
Endpoint endpoint_of(const std::string& text, const char* whom);
/// The opposite; puts brackets around what has colons.
std::string joined(const std::string& address, int port);

struct Reached {
  Descriptor socket;
  std::string target;   // for gRPC: "ipv4:10.0.0.1:4242"
  std::string address;  // of our side
  std::string fault;    // why not, when there is no socket
};

/// Tries all of the name's addresses. Blocks until the deadline, or until `interrupt` (a descriptor, or -1) becomes
/// readable; the lookup of the name takes what it takes.
Reached reach(const Endpoint& endpoint, const Deadline& deadline, int interrupt = -1);

/// Why gRPC cannot listen: it does not say.
std::string listen_fault(const std::string& address, int port);

/// Why the two sides' certificates do not go together, as the rest of a sentence that begins with the other side's
/// name; "" when it is not that. Blocks for two seconds at most.
std::string tls_fault(const Endpoint& endpoint, const std::optional<Certificates>& own, const std::string& folder);

}  // namespace trireme::cluster
