#pragma once
// A job that spans machines, in one process: ranks as threads, a segment per machine, sockets between them.
#include <trireme/comm/hierarchical/communicator.h>

#include "network_ranks.h"
#include "ranks.h"

namespace trireme::tests {

/// One rank's groups: all ranks, its machine's, and its lane, if it has one.
struct OnMachine {
  comm::hierarchical::Communicator& all;
  comm::shm::Communicator& here;
  comm::network::Communicator* lane;
  comm::network::Communicator* second_lane;
  metrics::Registry& registry;  // where its lane counts
};

/// `machine_of[r]` is the machine of rank r.
inline Outcomes run_machines(const std::vector<int>& machine_of, const std::function<void(const OnMachine&)>& body) {
  const comm::hierarchical::Topology topology(machine_of);
  std::vector<std::shared_ptr<Segment>> segments;
  for (int m = 0; m < topology.machines(); m++) segments.push_back(Segment::create());
  std::vector<std::vector<std::unique_ptr<comm::network::Transport>>> lanes, second_lanes;
  for (int lane = 0; lane < topology.lanes(); lane++) {
    lanes.push_back(connect_by_sockets(topology.machines()));
    second_lanes.push_back(connect_by_sockets(topology.machines()));
  }
  auto flats = connect_by_sockets(topology.size());

  Outcomes outcomes(machine_of.size());
  std::vector<std::thread> threads;
  for (size_t rank = 0; rank < machine_of.size(); rank++)
    threads.emplace_back([&, rank] {
      try {
        const auto [machine, local] = topology.place(static_cast<int>(rank));
        const auto m = static_cast<size_t>(machine), l = static_cast<size_t>(local);
        metrics::Registry registry;
        comm::network::Communicator flat(std::move(flats[rank]), {.registry = &registry, .label = "all"});
        std::unique_ptr<comm::network::Communicator> lane, second_lane;
        if (local < topology.lanes()) {
          std::vector<int> names;
          for (int other = 0; other < topology.machines(); other++) names.push_back(topology.ranks_on(other)[l]);
          lane = std::make_unique<comm::network::Communicator>(
              std::move(lanes[l][m]), comm::network::Options{.names = names, .registry = &registry, .label = "lane"});
          second_lane = std::make_unique<comm::network::Communicator>(std::move(second_lanes[l][m]),
                                                                      comm::network::Options{.names = names});
        }
        comm::shm::Communicator here(segments[m], local, static_cast<int>(topology.ranks_on(machine).size()));
        comm::hierarchical::Communicator all(topology, static_cast<int>(rank), here, lane.get(), flat);
        body({all, here, lane.get(), second_lane.get(), registry});
      } catch (...) {
        outcomes[rank] = std::current_exception();
      }
    });
  for (std::thread& thread : threads) thread.join();
  return outcomes;
}

}  // namespace trireme::tests
