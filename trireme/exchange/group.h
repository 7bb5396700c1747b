#pragma once
// Who trains together, as an exchange sees it: its communicators, and what it has besides.
#include <functional>

#include <trireme/cluster/world.h>
#include <trireme/comm/network/communicator.h>
#include <trireme/comm/shm/communicator.h>

namespace trireme::exchange {

/// Who trains together. A *lane* joins one rank of every machine; there are as many lanes as the machine with the
/// fewest ranks has ranks.
struct Group {
  comm::Communicator& all;
  comm::shm::Communicator& local;  // the ranks of this machine
  comm::network::Communicator* lane =
      nullptr;  // this rank's, machine by machine; null with one machine, and for a rank beyond the number of lanes
  int lanes = 1;
  World* world = nullptr;               // where the parameter servers are found; null: there are none
  comm::Communicator* model = nullptr;  // of this rank and those that have the other parts of its replica of the model
                                        // (space::Slot::cut), each in a group like this one; null: it has all of it
  std::function<comm::network::Communicator*()>
      second_lane{};  // another one among the ranks of `lane`, made when it is asked for: with Options::zero

  Group(comm::Communicator& all, comm::shm::Communicator& local, comm::network::Communicator* lane, int lanes)
      : all(all), local(local), lane(lane), lanes(lanes) {}
  /// Its communicators, which it outlives.
  explicit Group(const trireme::Group& group) : Group(group.comm(), group.local(), group.lane(), group.lanes()) {
    second_lane = [group] { return group.second_lane(); };
  }
  /// One machine.
  Group(comm::shm::Communicator& local)
      : all(local), local(local), lanes(local.size()) {}  // NOLINT: a machine's ranks are a group
  bool one_machine() const { return all.size() == local.size(); }
};

}  // namespace trireme::exchange
