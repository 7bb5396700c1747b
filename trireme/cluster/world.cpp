#include <trireme/cluster/world.h>

#include <trireme/comm/shm/rendezvous.h>

namespace trireme {

World::World(cluster::Place place, JoinOptions options) : place_(std::move(place)) {
  auto segment = comm::shm::meet(place_.job, place_.rank, place_.size, options.timeout);
  local_ = std::make_unique<comm::shm::Communicator>(std::move(segment), place_.rank, place_.size, comm::shm::Options{.timeout = options.timeout});
}

World join(JoinOptions options) { return World(cluster::place_here(), options); }

}  // namespace trireme
