#pragma once
// Ranks that do something together: all of the world, or a part of it.
//
//   Group pairs = world.split(world.rank() / 2);                       // ranks 0 and 1, ranks 2 and 3
//   Mesh mesh = world.mesh({{"data", 2}, {"pipeline", 2}});            // named axes, the last one fastest
//   mesh.group("data").comm().allreduce(…);                            // with those who differ in that axis alone
//
// A group is a value: a handle that is copied freely; the last copy closes its communicators. It belongs to a
// membership *epoch*: when the crew changes (World::regroup) its groups are of no more use, and new ones are made over
// the ranks that are left, in the same processes and on the same memory.
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include <trireme/cluster/site.h>
#include <trireme/comm/communicator.h>
#include <trireme/comm/network/communicator.h>
#include <trireme/comm/shm/communicator.h>

namespace trireme {

/// Its communicators are for one thread at a time; the rest is thread-safe. Outlived by its World. Whatever needs
/// communicators throws InvalidArgument when the group's epoch has ended.
class Group {
 public:
  /// Collective among the crew. `control` is where its ranks on this machine find their control block in the segment:
  /// memory that the first of them has claimed for them alone. Blocks until all are there, not longer than the site's
  /// timeout. Throws PeerLost when its epoch fails meanwhile, or when one of them is `gone` (by its number in the
  /// world; null: nobody knows).
  Group(std::shared_ptr<cluster::Site> site, cluster::Crew crew, size_t control,
        const std::function<bool(int rank)>& gone = nullptr);

  /// Of this process in the group: 0 to size() - 1.
  int rank() const;
  int size() const;
  /// Exactly one rank is the first.
  bool first() const { return rank() == 0; }
  uint64_t epoch() const;
  /// Their numbers in the world, by rank.
  const std::vector<int>& ranks() const;
  /// False once somebody of it is known to be gone, or its epoch has ended. Does not block.
  bool intact() const;
  /// "ranks 0 and 2 of epoch 1"
  std::string describe() const;

  int machines() const;
  /// Of any rank; machines are numbered from 0, in the order of their first ranks.
  int machine_of(int rank) const;
  int lanes() const;

  comm::Communicator& comm() const;
  /// The ranks on this machine.
  comm::shm::Communicator& local() const;
  /// This rank's partners, one on each machine. Null with one machine, and for a rank beyond the number of lanes.
  comm::network::Communicator* lane() const;
  /// All ranks, whatever machine they are on. Null with one machine. comm() sends messages between machines over it.
  comm::network::Communicator* network() const;
  /// Another lane among the same ranks, whose collectives have an order of their own. Made by the first call, which is
  /// collective among the lane's ranks.
  comm::network::Communicator* second_lane() const;

  /// Collective. Ranks that give the same `color` (0 or more) are a group, in the order of their keys, then of their
  /// ranks here. Throws InvalidArgument on all ranks when one gives a color that is none.
  Group split(int color, int key = 0) const;

  /// How long waits for other ranks may take that begin from now on, here and in whatever else uses this group's
  /// communicators; null: as long as at first.
  void limit_waits(const WaitLimit* limit) const;

  /// Where this process counts.
  metrics::Registry& registry() const;
  /// The T of this process's membership: see World::attached().
  template <class T, class... Arguments>
  T& attached(Arguments&&... arguments) const {
    return site().attached<T>(std::forward<Arguments>(arguments)...);
  }

 private:
  class State;
  cluster::Site& site() const;
  State& live() const;
  std::shared_ptr<State> state_;
};

}  // namespace trireme
