// label: unit
// The contract of comm::Communicator for jobs that span machines: ranks as threads, a segment per machine, sockets
// between them.
#include <array>
#include <latch>
#include <new>

#include "contract.h"
#include "machines.h"

namespace trireme::tests {
namespace {

using comm::hierarchical::Topology;
using Group = comm::hierarchical::Communicator;

Outcomes run_machines(const std::vector<int>& machine_of, const std::function<void(Group&)>& body) {
  return tests::run_machines(machine_of,
                             std::function<void(const OnMachine&)>([&](const OnMachine& rank) { body(rank.all); }));
}

Engine machines(const char* name, const std::vector<int>& machine_of) {
  return {name, [=](int, const auto& body) { expect_all_well(run_machines(machine_of, body)); },
          [](Communicator& group, size_t bytes) {
            auto& here = dynamic_cast<Group&>(group);
            return here.allocate(bytes, "a test's memory")
                .parts[static_cast<size_t>(here.topology().place(here.rank()).local)];
          }};
}

#define TRIREME_SHAPE(name, ranks, ...)                                                                             \
  INSTANTIATE_TEST_SUITE_P(name, Contract,                                                                          \
                           testing::Combine(testing::Values(machines(#name, __VA_ARGS__)), testing::Values(ranks)), \
                           case_name)
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
    float* const data =
        group.rank() < 2 ? reinterpret_cast<float*>(block.parts[static_cast<size_t>(group.rank())]) : mine.data();
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

TEST(Hierarchical, CountsThatDisagreeNameRanksAndCounts) {
  for (const bool here : {true, false}) {  // among the ranks of a machine, and between machines
    const Outcomes outcomes = run_machines({0, 0, 1, 1}, [&](Group& group) {
      const bool odd = here ? group.rank() == 1 : group.rank() >= 2;
      const std::vector<size_t> counts = {3, odd ? 6u : 5u, 0, odd ? 6u : 7u};
      std::vector<float> input(20), output(20);
      group.all_gather(input.data(), output.data(), counts, DType::f32, "pieces");
    });
    for (const auto& outcome : outcomes) EXPECT_TRUE(outcome);
    expect_error<Mismatch>(outcomes[0], {"block 1 has 5 elements on rank 0", here ? "6 on rank 1" : "6 on rank 2"});
  }
}

/// Between machines each block travels once, in the lane of one rank: not as often as there are ranks, and not as parts
/// of an allreduce. What the lanes need beside is small.
TEST(Hierarchical, BlocksTravelOnceBetweenMachines) {
  constexpr size_t kBlock = 300'000, kBytes = kBlock * sizeof(float);
  for (const bool scatter : {true, false})
    for (const std::vector<int>& machine_of : {std::vector{0, 0, 1, 1}, std::vector{0, 0, 1, 1, 2, 2}}) {
      const size_t ranks = machine_of.size(), others = ranks / 2 - 1;
      expect_all_well(
          tests::run_machines(machine_of, std::function<void(const OnMachine&)>([&](const OnMachine& rank) {
                                std::vector<float> all(ranks * kBlock, 1), own(kBlock, 1);
                                if (scatter)
                                  rank.all.reduce_scatter(all.data(), own.data(), kBlock, DType::f32, Op::sum, "parts");
                                else
                                  rank.all.all_gather(own.data(), all.data(), kBlock, DType::f32, "parts");
                                EXPECT_EQ(scatter ? own.back() : all.back(), scatter ? static_cast<float>(ranks) : 1);
                                rank.all.barrier("all of it is counted");
                                // A scatter sends each other machine the sums for its two ranks, a gather the blocks of
                                // the two here; in two lanes.
                                const double wanted = static_cast<double>(others * kBytes);
                                const double sent = rank.registry.snapshot().total("sent_bytes").value;
                                EXPECT_GE(sent, wanted) << (scatter ? "scatter" : "gather");
                                EXPECT_LE(sent, 1.05 * wanted) << (scatter ? "scatter" : "gather");
                              })));
    }
}

/// After an error a group is destroyed while its collectives are under way: they refer to it, and to its rooms.
TEST(Hierarchical, WhatIsUnderWayEndsWithTheGroup) {
  using Start = std::function<comm::Started(Group&, const float* input, float* output)>;
  const std::pair<const char*, Start> kinds[] = {
      {"all-gather", [](Group& g, auto* in, auto* out) { return g.start_all_gather(in, out, 1000, DType::f32, "w"); }},
      {"reduce-scatter",
       [](Group& g, auto* in, auto* out) { return g.start_reduce_scatter(in, out, 500, DType::f32, Op::sum, "w"); }}};
  for (const auto& [name, start] : kinds) {
    SCOPED_TRACE(name);
    struct alignas(Group) Place {
      std::array<std::byte, sizeof(Group)> bytes;
    };
    std::array<Place, 2> places{}, left{};
    std::latch gone(1);
    const std::function<void(const OnMachine&)> body = [&](const OnMachine& rank) {
      const auto me = static_cast<size_t>(rank.all.rank());
      // With one rank on each machine the second lane connects all ranks.
      auto* const group =
          new (&places[me]) Group(Topology({0, 1}), rank.all.rank(), rank.here, rank.lane, *rank.second_lane);
      std::vector<float> input(1000), output(2000);
      if (me == 0) start(*group, input.data(), output.data());  // the other one does not come
      if (me == 1) gone.wait();
      group->~Communicator();
      left[me] = places[me];
      if (me == 0) gone.count_down();
    };
    expect_all_well(tests::run_machines({0, 1}, body));
    for (size_t rank = 0; rank < 2; rank++)
      EXPECT_TRUE(left[rank].bytes == places[rank].bytes) << "rank " << rank << " wrote into a group that was gone";
  }
}

}  // namespace
}  // namespace trireme::tests
