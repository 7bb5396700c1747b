// label: unit
// Sums beside the rounds: on one machine and over several, with ranks that stay away, and while other things are under
// way.
#include <gtest/gtest.h>

#include <trireme/comm/gathering.h>

#include "machines.h"

namespace trireme::comm::tests {
namespace {

using trireme::tests::expect_all_well;
using trireme::tests::expect_error;
using trireme::tests::OnMachine;
using trireme::tests::run_machines;
using trireme::tests::run_ranks;

const std::vector<std::vector<int>> kShapes = {{0},          {0, 0},          {0, 0, 0},   {0, 1},
                                               {0, 0, 1, 1}, {0, 1, 0, 1, 1}, {0, 1, 1, 2}};

/// Who stays away changes from step to step; in some all do.
bool here(int rank, int step) { return (rank * 7 + step * 5) % 4 != 0 && step % 6 != 5; }

void add_up(Communicator& group, const std::vector<int>& machine_of) {
  Gathering gathering(group, machine_of);
  for (int step = 0; step < 12; step++) {
    const bool mine = here(group.rank(), step);
    gathering.call(mine);
    std::vector<int> present, absent;
    double sum = 0;
    for (int rank = 0; rank < group.size(); rank++) {
      (here(rank, step) ? present : absent).push_back(rank);
      if (here(rank, step)) sum += rank + 1;
    }
    ASSERT_EQ(gathering.present(), present);
    ASSERT_EQ(gathering.absent(), absent);
    if (!mine) continue;
    for (const size_t count : {size_t{1}, size_t{3}, size_t{100'000}}) {  // far more than a letter holds
      std::vector<double> numbers(count, group.rank() + 1);
      gathering.merge(numbers, add, "numbers");
      ASSERT_EQ(numbers, std::vector<double>(count, sum));
    }
  }
}

TEST(Gathering, AddsUpWhatThosePresentHave) {
  for (const auto& machine_of : kShapes)
    expect_all_well(run_machines(machine_of, [&](const OnMachine& rank) { add_up(rank.all, machine_of); }));
}

/// A rank that is ahead with its rounds waits for one that has not come to them.
TEST(Gathering, RunsBesideRoundsThatAreOpen) {
  expect_all_well(run_ranks(3, [&](shm::Communicator& group) {
    Gathering gathering(group, {0, 0, 0});
    const auto block = group.allocate(sizeof(double), "a number");
    auto* const number = reinterpret_cast<double*>(block.parts[static_cast<size_t>(group.rank())]);
    for (int step = 0; step < 20; step++) {
      *number = 1;
      const auto work = group.start_allreduce(number, 1, DType::f64, Op::sum, "under way");
      double mine = group.rank();
      gathering.merge({&mine, 1}, add, "numbers");
      EXPECT_EQ(mine, 3);
      work->wait();
      EXPECT_EQ(*number, 3);
      group.barrier("read");
    }
  }));
}

/// Sums that depend on their order: all ranks must have added in the same one.
TEST(Gathering, GivesTheSameBitsEverywhere) {
  const std::vector<int> machine_of = {0, 1, 0, 1, 1};
  std::vector<double> results(machine_of.size());
  expect_all_well(run_machines(machine_of, [&](const OnMachine& rank) {
    Gathering gathering(rank.all, machine_of);
    double mine = 1.0 / (3 + rank.all.rank() * 1e9);
    gathering.merge({&mine, 1}, add, "numbers");
    results[static_cast<size_t>(rank.all.rank())] = mine;
  }));
  for (const double result : results) EXPECT_EQ(result, results[0]);
}

TEST(Gathering, WhoComesForSomethingElseIsNamed) {
  const auto outcomes = run_ranks(2, [&](shm::Communicator& group) {
    Gathering gathering(group, {0, 0});
    std::vector<double> numbers(group.rank() == 0 ? 3 : 5);
    gathering.merge(numbers, add, group.rank() == 0 ? "layer 1" : "layer 2");
  });
  expect_error<Mismatch>(outcomes[0], {"rank 0", "'layer 1' of 3", "rank 1", "'layer 2' of 5"});
}

}  // namespace
}  // namespace trireme::comm::tests
