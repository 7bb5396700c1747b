#pragma once
// The ranks that train together.
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <trireme/base/clock.h>
#include <trireme/cluster/environment.h>
#include <trireme/comm/network/communicator.h>
#include <trireme/comm/shm/communicator.h>

namespace trireme {

struct JoinOptions {
  Seconds timeout{60};                 // deadline of every wait for another rank, the start included
  Seconds heartbeat_limit{3};          // several machines: silence that counts as death
  std::string engine;                  // between machines: gloo, mpi or nccl; "" and auto: what TRIREME_ENGINE says
  std::optional<size_t> direct_bytes;  // between machines: network::Options::direct_bytes; none: what `trireme tune` kept, or a default. Rank 0's counts
};

/// This process's membership in a job. Move-only; leaving is destroying it. One thread at a time.
class World {
 public:
  World(cluster::Place place, JoinOptions options);
  ~World();
  World(World&&) noexcept;

  int rank() const { return place_.rank; }
  int size() const { return place_.size; }
  /// Exactly one rank is the first: the one that prints and saves.
  bool first() const { return rank() == 0; }
  const std::string& launcher() const { return place_.launcher; }

  comm::Communicator& comm();
  /// The ranks on this machine.
  comm::shm::Communicator& local() { return *local_; }
  /// This rank's partners, one on each machine: see exchange::Group. Null with one machine, and for a rank beyond the number of lanes.
  comm::network::Communicator* lane();
  int lanes() const;
  int machines() const;
  /// "shared memory", "shared memory, and Gloo of libtorch 1.13.1 between 2 machines"
  std::string engine() const;
  /// What the user should know, such as clocks that differ between machines.
  const std::vector<std::string>& warnings() const { return warnings_; }

 private:
  struct Network;
  void meet_machines(const JoinOptions& options);
  void connect_machines(const JoinOptions& options, const std::vector<int>& machine_of);

  cluster::Place place_;
  std::vector<std::string> warnings_;
  std::unique_ptr<comm::shm::Communicator> local_;
  std::unique_ptr<Network> network_;  // null when all ranks were started on this machine
};

/// Joins the ranks that a launcher started, or makes a world of one when there is no launcher. Blocks until all are there.
World join(JoinOptions options = {});

}  // namespace trireme
