#pragma once
// Doors: sockets of running processes, as the machine lists them. For status_door.cpp and control_door.cpp. Not
// installed.
#include <string>
#include <vector>

#include <trireme/base/descriptor.h>

namespace trireme::cluster {

struct Door {
  std::string name;
  int process = 0;
};

/// Of this user, of one kind ("status/").
std::vector<Door> doors_of(const char* kind);

/// Opens one of this process. False where it cannot be.
bool open_door(const Descriptor& listener, const char* kind);

/// The next visitor of the same user, for at most a second to each of its words; nothing: `stop` is readable. Signals
/// are for other threads than the one that calls this.
Descriptor next_visitor(const Descriptor& listener, const Descriptor& stop);

}  // namespace trireme::cluster
