#pragma once
// The ranks that train together.
#include <memory>
#include <string>

#include <trireme/base/clock.h>
#include <trireme/cluster/environment.h>
#include <trireme/comm/shm/communicator.h>

namespace trireme {

struct JoinOptions {
  Seconds timeout{60};  // deadline of every wait for another rank, the start included
};

/// This process's membership in a job. Move-only; leaving is destroying it. One thread at a time.
class World {
 public:
  World(cluster::Place place, JoinOptions options);

  int rank() const { return place_.rank; }
  int size() const { return place_.size; }
  /// Exactly one rank is the first: the one that prints and saves.
  bool first() const { return rank() == 0; }
  const std::string& launcher() const { return place_.launcher; }

  comm::Communicator& comm() { return *local_; }
  /// The ranks on this machine: today, all.
  comm::shm::Communicator& local() { return *local_; }

 private:
  cluster::Place place_;
  std::unique_ptr<comm::shm::Communicator> local_;
};

/// Joins the ranks that a launcher started, or makes a world of one when there is no launcher. Blocks until all are there.
World join(JoinOptions options = {});

}  // namespace trireme
