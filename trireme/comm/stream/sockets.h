#pragma once
// TCP sockets that do not block.
#include <optional>
#include <string>

#include <trireme/base/descriptor.h>

namespace trireme::comm::stream {

/// "10.0.0.1 4242": numeric, so that nobody has to look up a name again.
struct Spot {
  std::string address, port;
  std::string text() const { return address + " " + port; }
  /// Throws Corruption.
  static Spot of(const std::string& text);
};

/// At this host's address, or, where it has none of that kind (behind a translation of addresses), at all of its own.
/// Any port that is free.
struct Listener {
  Descriptor socket;
  Spot spot;  // how the others reach it
};
/// An empty address is this host's name. Throws IoError.
Listener listen_at(const std::string& address);

struct Visitor {
  Descriptor socket;
  std::string address;
};
/// Nobody who waits: none.
std::optional<Visitor> accept_one(const Descriptor& listener);

/// Begins; the socket is writable when it is over. Throws IoError.
Descriptor start_connecting(const Spot& to);
/// How that has ended: 0, or an errno.
int connecting_fault(const Descriptor& socket);

}  // namespace trireme::comm::stream
