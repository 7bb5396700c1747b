// label: unit
// The contract of comm::Communicator for jobs that span machines: ranks as threads, a segment per machine, sockets between them.
#include <trireme/comm/hierarchical/communicator.h>

#include "contract.h"
#include "network_ranks.h"

namespace trireme::tests {
namespace {

using comm::hierarchical::Topology;
using Group = comm::hierarchical::Communicator;

/// `machine_of[r]` is the machine of rank r.
Outcomes run_machines(const std::vector<int>& machine_of, const std::function<void(Group&)>& body) {
  const Topology topology(machine_of);
  std::vector<std::shared_ptr<Segment>> segments;
  for (int m = 0; m < topology.machines(); m++) segments.push_back(Segment::create());
  std::vector<std::vector<std::unique_ptr<comm::network::Transport>>> lanes;
  for (int lane = 0; lane < topology.lanes(); lane++) lanes.push_back(connect_by_sockets(topology.machines()));
  auto flats = connect_by_sockets(topology.size());

  Outcomes outcomes(machine_of.size());
  std::vector<std::thread> threads;
  for (size_t rank = 0; rank < machine_of.size(); rank++)
    threads.emplace_back([&, rank] {
      try {
        const auto [machine, local] = topology.place(static_cast<int>(rank));
        const auto m = static_cast<size_t>(machine), l = static_cast<size_t>(local);
        comm::network::Communicator flat(std::move(flats[rank]));
        std::unique_ptr<comm::network::Communicator> lane;
        if (local < topology.lanes()) {
          std::vector<int> names;
          for (int other = 0; other < topology.machines(); other++) names.push_back(topology.ranks_on(other)[l]);
          lane = std::make_unique<comm::network::Communicator>(std::move(lanes[l][m]), comm::network::Options{.names = names});
        }
        comm::shm::Communicator here(segments[m], local, static_cast<int>(topology.ranks_on(machine).size()));
        Group group(topology, static_cast<int>(rank), here, lane.get(), flat);
        body(group);
      } catch (...) {
        outcomes[rank] = std::current_exception();
      }
    });
  for (std::thread& thread : threads) thread.join();
  return outcomes;
}

Engine machines(const char* name, const std::vector<int>& machine_of) {
  return {name, [=](int, const auto& body) { expect_all_well(run_machines(machine_of, body)); },
          [](Communicator& group, size_t bytes) {
            auto& here = dynamic_cast<Group&>(group);
            return here.allocate(bytes, "a test's memory").parts[static_cast<size_t>(here.topology().place(here.rank()).local)];
          }};
}

#define TRIREME_SHAPE(name, ranks, ...) \
  INSTANTIATE_TEST_SUITE_P(name, Contract, testing::Combine(testing::Values(machines(#name, __VA_ARGS__)), testing::Values(ranks)), case_name)
TRIREME_SHAPE(OneRank, 1, {0});
TRIREME_SHAPE(OneMachineOfFour, 4, {0, 0, 0, 0});
TRIREME_SHAPE(TwoMachinesOfOne, 2, {0, 1});
TRIREME_SHAPE(FourMachinesOfOne, 4, {0, 1, 2, 3});
TRIREME_SHAPE(TwoMachinesOfTwo, 4, {0, 0, 1, 1});
TRIREME_SHAPE(TwoAndOne, 3, {0, 0, 1});
TRIREME_SHAPE(ThreeAndOne, 4, {0, 0, 0, 1});
TRIREME_SHAPE(RoundRobin, 6, {0, 1, 2, 0, 1, 2});
TRIREME_SHAPE(Scattered, 7, {1, 0, 2, 1, 1, 0, 2});
#undef TRIREME_SHAPE

TEST(Topology, CountsLanesAndPlaces) {
  const Topology topology({1, 0, 1, 1, 0});
  EXPECT_EQ(topology.machines(), 2);
  EXPECT_EQ(topology.lanes(), 2);
  EXPECT_EQ(topology.largest_machine(), 3);
  EXPECT_EQ(topology.ranks_on(1), (std::vector<int>{0, 2, 3}));
  EXPECT_EQ(topology.place(4).local, 1);
  EXPECT_THROW(Topology({0, 2, 2}), InvalidArgument);
  EXPECT_THROW(Topology({0, -1}), InvalidArgument);
  EXPECT_THROW(Topology({}), InvalidArgument);
}

TEST(Hierarchical, MachinesNeedNotAgreeOnWhereTheirDataIs) {
  expect_all_well(run_machines({0, 0, 1, 1}, [](Group& group) {
    const auto block = group.allocate(4000, "memory");
    std::vector<float> mine(1000);
    float* const data = group.rank() < 2 ? reinterpret_cast<float*>(block.parts[static_cast<size_t>(group.rank())]) : mine.data();
    std::fill_n(data, 1000, static_cast<float>(group.rank()));
    group.allreduce(data, 1000, DType::f32, Op::mean, "w");
    for (int i = 0; i < 1000; i++) ASSERT_EQ(data[i], 1.5f);
  }));
}

TEST(Hierarchical, DisagreementBetweenMachinesNamesRanksOfTheJob) {
  const Outcomes outcomes = run_machines({0, 0, 1, 1}, [](Group& group) {
    float x = 0;
    group.allreduce(&x, 1, DType::f32, Op::sum, group.rank() < 2 ? "left" : "right");
  });
  expect_error<Mismatch>(outcomes[0], {"rank 0 called", "rank 2 called", "'left'", "'right'"});
  for (const auto& outcome : outcomes) EXPECT_TRUE(outcome);
}

TEST(Hierarchical, StartedAllreduceOfPrivateMemoryIsRefused) {
  expect_all_well(run_machines({0, 0, 1}, [](Group& group) {
    float x = 1;
    if (group.rank() < 2) {
      EXPECT_THROW(group.start_allreduce(&x, 1, DType::f32, Op::sum, "x"), InvalidArgument);
    }
  }));
}

}  // namespace
}  // namespace trireme::tests
