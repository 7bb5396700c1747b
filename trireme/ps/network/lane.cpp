#include <trireme/ps/network/lane.h>

#include <fmt/format.h>

#include <trireme/base/error.h>
#include <trireme/ps/network/door.h>

namespace trireme::ps::network {

std::string address_key(int server) { return fmt::format("ps/{}", server); }

std::unique_ptr<Lane> connect(const LaneOptions& options, std::shared_ptr<shm::Memory> /*memory*/, std::function<void()> /*alarm*/,
                              const Deadline& /*deadline*/) {
  fail<InvalidArgument>("server {} is on another machine ({}): workers and servers must be on one machine so far", options.server, options.address);
}

std::unique_ptr<Door> open_door(const DoorOptions& /*options*/, Inbox& /*inbox*/) { fail<InvalidArgument>("parameter servers work on one machine so far"); }

}  // namespace trireme::ps::network
