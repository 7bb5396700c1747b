// label: unit
// Groups and meshes: who is in them, that every collective works in them on one machine and across, and what is
// refused.
#include <latch>

#include <trireme/cluster/mesh.h>

#include "../comm/contract.h"
#include "groups.h"

namespace trireme::tests {
namespace {

// ---- every collective, in parts of a world ----

/// The contract's ranks are the even ranks of a world; the odd ones do the same at the same time, among themselves.
Engine halves(const char* name, const std::function<int(int rank)>& machine_of) {
  return {name,
          [=](int ranks, const auto& body) {
            std::vector<int> machines;
            for (int rank = 0; rank < 2 * ranks; rank++) machines.push_back(machine_of(rank));
            expect_all_well(run_world(machines, [&](Group& all, cluster::Site&) {
              const Group half = all.split(all.rank() % 2);
              ASSERT_EQ(half.size(), ranks);
              ASSERT_EQ(half.rank(), all.rank() / 2);
              body(half.comm());
            }));
          },
          allocate_in, false};  // two groups run the test at a time: they must not share its variables
}

INSTANTIATE_TEST_SUITE_P(OneMachine, Contract,
                         testing::Combine(testing::Values(halves("one_machine", [](int) { return 0; })),
                                          testing::Values(2)),
                         case_name);
INSTANTIATE_TEST_SUITE_P(TwoMachines, Contract,
                         testing::Combine(testing::Values(halves("two_machines",
                                                                 [](int rank) { return rank < 3 ? 0 : 1; })),
                                          testing::Values(4)),
                         case_name);
/// Each half has ranks on all three machines.
INSTANTIATE_TEST_SUITE_P(ThreeMachines, Contract,
                         testing::Combine(testing::Values(halves("three_machines",
                                                                 [](int rank) { return rank / 2 % 3; })),
                                          testing::Values(3)),
                         case_name);

// ---- who is in a group ----

int64_t sum(const Group& group, int64_t mine) {
  group.comm().allreduce(&mine, 1, DType::i64, Op::sum, "numbers");
  return mine;
}

TEST(Group, TheWholeKnowsItsRanksAndMachines) {
  expect_all_well(run_world({0, 0, 1, 1}, [](Group& all, cluster::Site&) {
    EXPECT_EQ(all.size(), 4);
    EXPECT_EQ(all.epoch(), 0u);
    EXPECT_EQ(all.ranks(), (std::vector<int>{0, 1, 2, 3}));
    EXPECT_EQ(all.machines(), 2);
    EXPECT_EQ(all.machine_of(2), 1);
    EXPECT_EQ(all.lanes(), 2);
    EXPECT_NE(all.lane(), nullptr);
    EXPECT_EQ(all.local().size(), 2);
    EXPECT_EQ(all.describe(), "ranks 0, 1, 2, 3 of epoch 0");
  }));
}

TEST(Group, KeysSayTheOrderAndRanksDoAmongEqualKeys) {
  expect_all_well(run_world({0, 0, 0, 0}, [](Group& all, cluster::Site&) {
    const Group turned = all.split(0, -all.rank());
    EXPECT_EQ(turned.ranks(), (std::vector<int>{3, 2, 1, 0}));
    EXPECT_EQ(turned.rank(), 3 - all.rank());
    const Group pairs = turned.split(all.rank() / 2, 7);
    EXPECT_EQ(pairs.ranks(), all.rank() < 2 ? (std::vector<int>{1, 0}) : (std::vector<int>{3, 2}));
    EXPECT_EQ(sum(pairs, all.rank()), all.rank() < 2 ? 1 : 5);
    int64_t from = all.rank();
    pairs.comm().broadcast(&from, 1, DType::i64, 0, "first of the pair");
    EXPECT_EQ(from, pairs.ranks()[0]);
  }));
}

TEST(Group, APartMayBeOnOneMachineOrOnSeveral) {
  expect_all_well(run_world({0, 0, 1, 1}, [](Group& all, cluster::Site&) {
    const Group here = all.split(all.rank() / 2), across = all.split(all.rank() % 2);
    EXPECT_EQ(here.machines(), 1);
    EXPECT_EQ(here.lane(), nullptr);
    EXPECT_EQ(here.lanes(), 2);
    EXPECT_EQ(across.machines(), 2);
    EXPECT_EQ(across.lanes(), 1);
    EXPECT_EQ(across.machine_of(1), 1);
    EXPECT_EQ(sum(here, 1 << all.rank()), all.rank() < 2 ? 3 : 12);
    EXPECT_EQ(sum(across, 1 << all.rank()), all.rank() % 2 == 0 ? 5 : 10);
    EXPECT_EQ(sum(all, 1 << all.rank()), 15);
  }));
}

TEST(Group, IsAValue) {
  expect_all_well(run_world({0, 0}, [](Group& all, cluster::Site&) {
    Group copy = all;
    {
      Group pair = all.split(0);
      copy = pair;
    }
    EXPECT_EQ(sum(copy, 1), 2);
    EXPECT_EQ(sum(all, 1), 2);
  }));
}

TEST(Group, MemoryOfOneGroupIsReducedInPlaceByAnother) {
  expect_all_well(run_world({0, 0, 0}, [](Group& all, cluster::Site&) {
    auto* numbers = reinterpret_cast<float*>(allocate_in(all.comm(), 40000));
    const Group pair = all.split(all.rank() == 2);
    std::fill_n(numbers, 10000, static_cast<float>(1 + all.rank()));
    pair.comm().start_allreduce(numbers, 10000, DType::f32, Op::sum, "in place")->wait();
    for (int i = 0; i < 10000; i++) ASSERT_EQ(numbers[i], 3.0f);
  }));
}

// ---- meshes ----

TEST(Mesh, IsRowMajorWithTheLastAxisFastest) {
  for (const std::vector<int>& machines : {std::vector<int>{0, 0, 0, 0, 0, 0, 0, 0}, {0, 0, 0, 0, 1, 1, 1, 1}})
    expect_all_well(run_world(machines, [](Group& all, cluster::Site&) {
      const Mesh mesh(all, {{"data", 2}, {"pipeline", 2}, {"tensor", 2}});
      const int d = all.rank() / 4, p = all.rank() / 2 % 2, t = all.rank() % 2;
      EXPECT_EQ(mesh.coordinate("data"), d);
      EXPECT_EQ(mesh.coordinate("pipeline"), p);
      EXPECT_EQ(mesh.coordinate("tensor"), t);
      EXPECT_EQ(mesh.size("tensor"), 2);
      const auto world_rank = [](int a, int b, int c) { return 4 * a + 2 * b + c; };
      EXPECT_EQ(mesh.group("data").ranks(), (std::vector<int>{world_rank(0, p, t), world_rank(1, p, t)}));
      EXPECT_EQ(mesh.group("pipeline").ranks(), (std::vector<int>{world_rank(d, 0, t), world_rank(d, 1, t)}));
      EXPECT_EQ(mesh.group("tensor").ranks(), (std::vector<int>{world_rank(d, p, 0), world_rank(d, p, 1)}));
      for (const char* axis : {"data", "pipeline", "tensor"}) {
        const auto& ranks = mesh.group(axis).ranks();
        EXPECT_EQ(sum(mesh.group(axis), all.rank()), ranks[0] + ranks[1]) << axis;
      }
    }));
}

TEST(Mesh, UnevenAxesAndAxesOfOne) {
  expect_all_well(run_world({0, 0, 0, 0, 1, 1}, [](Group& all, cluster::Site&) {
    const Mesh mesh(all, {{"data", 3}, {"pipeline", 2}, {"tensor", 1}});
    EXPECT_EQ(mesh.coordinate("data"), all.rank() / 2);
    EXPECT_EQ(mesh.group("tensor").size(), 1);
    EXPECT_EQ(sum(mesh.group("data"), all.rank()), all.rank() % 2 == 0 ? 6 : 9);
    EXPECT_EQ(sum(mesh.group("pipeline"), 1), 2);
    EXPECT_EQ(sum(mesh.group("tensor"), 1), 1);
  }));
}

// ---- what is refused ----

TEST(BadMesh, AxesThatDoNotMultiplyToTheGroup) {
  for (const auto& outcome : run_world({0, 0, 0, 0}, [](Group&all, cluster::Site&) {
         Mesh mesh(all, {{"data", 2}, {"pipeline", 3}});
       }))
    expect_error<InvalidArgument>(outcome, {"data 2 × pipeline 3", "has 6 ranks, the group 4"});
}

TEST(BadMesh, AxesOnWhichRanksDisagree) {
  for (const auto& outcome : run_world({0, 0, 1, 1}, [](Group&all, cluster::Site&) {
         if (all.rank() == 2)
           Mesh mesh(all, {{"pipeline", 2}, {"data", 2}});
         else
           Mesh mesh(all, {{"data", 2}, {"pipeline", 2}});
       }))
    expect_error<Mismatch>(outcome,
                           {"rank 0 makes a mesh of data 2 × pipeline 2", "rank 2 one of pipeline 2 × data 2"});
}

TEST(BadMesh, NamesAndSizesThatAreNone) {
  const auto refused = [](const std::vector<Axis>& axes, const char* text) {
    for (const auto& outcome : run_world({0, 0}, [&](Group&all, cluster::Site&) { Mesh mesh(all, axes); }))
      expect_error<InvalidArgument>(outcome, {text});
  };
  refused({{"", 2}}, "needs a name");
  refused({{"data", 2}, {"data", 1}}, "'data' twice");
  refused({{"data", 0}, {"tensor", 2}}, "'data' of a mesh has 0 ranks");
  refused({{"data", 1 << 30}, {"tensor", 1 << 30}}, "the group 2");
}

TEST(BadMesh, AnAxisThatIsNotThere) {
  for (const auto& outcome : run_world({0, 0}, [](Group&all, cluster::Site&) {
         const Mesh mesh(all, {{"data", 2}});
         mesh.group("date");
       }))
    expect_error<InvalidArgument>(outcome, {"no axis 'date'", "data 2", "did you mean 'data'"});
}

TEST(BadSplit, AColorThatIsNoneIsRefusedOnAllRanks) {
  for (const auto& outcome : run_world({0, 0, 1}, [](Group&all, cluster::Site&) { all.split(all.rank() - 1); }))
    expect_error<InvalidArgument>(outcome, {"rank 0 gives color -1", "0 or more"});
}

TEST(BadSplit, RanksThatSplitDifferentGroups) {
  const Outcomes outcomes = run_world(
      {0, 0, 0},
      [](Group& all, cluster::Site&) {
        const Group again = all.split(4);
        if (all.rank() == 1) again.split(7);
        all.split(0);
      },
      Seconds(1));
  for (const auto& outcome : outcomes)
    expect_error<Error>(outcome, {"split 1 of group 'all' (ranks 0, 1, 2) with color 0",
                                  "split 0 of group 'all/1.4' (ranks 0, 1, 2) with color 7", "rank 1 ",
                                  "Do all ranks split the same groups, in the same order?"});
}

TEST(BadSplit, RanksOnTwoMachinesThatSplitDifferentGroups) {
  const Outcomes outcomes = run_world(
      {0, 1},
      [](Group& all, cluster::Site&) {
        const Group again = all.split(4);
        if (all.rank() == 1) again.split(7);
        all.split(0);
      },
      Seconds(1));
  for (const auto& outcome : outcomes)
    expect_error<Error>(outcome, {"split 1 of group 'all' (ranks 0, 1) with color 0",
                                  "split 0 of group 'all/1.4' (ranks 0, 1) with color 7"});
}

TEST(BadSplit, WhoDoesNotComeIsNamedWithItsLatestSplit) {
  const Outcomes outcomes = run_world(
      {0, 0},
      [](Group& all, cluster::Site&) {
        all.split(all.rank());
        if (all.rank() == 0) all.split(0);
        std::this_thread::sleep_for(std::chrono::milliseconds(1500));
      },
      Seconds(1));
  expect_error<Timeout>(outcomes[0], {"split 1 of group 'all'", "rank 1 came last to split 0 of group 'all'"});
}

TEST(Store, WhatIsNoNumberIsNamed) {
  EXPECT_EQ(comm::network::number_under("a key", "70001"), 70001u);
  for (const char* value : {"", "x", "12x", " 12", "-1", "99999999999999999999999"}) try {
      comm::network::number_under("epoch 0/all/direct bytes", value);
      ADD_FAILURE() << value;
    } catch (const Corruption& error) {
      for (const std::string& part : {fmt::format("'{}'", value), std::string("'epoch 0/all/direct bytes'")})
        EXPECT_NE(std::string(error.what()).find(part), std::string::npos) << error.what();
    }
}

TEST(BadSplit, SplittingWhileOthersReduceIsAMismatch) {
  const Outcomes outcomes = run_world({0, 0}, [](Group& all, cluster::Site&) {
    if (all.rank() == 0)
      all.split(0);
    else
      sum(all, 1);
  });
  for (const auto& outcome : outcomes) expect_error<Mismatch>(outcome, {"split 0 of group 'all'", "'numbers'"});
}

TEST(Epoch, AGroupIsOfNoUseAfterItsEpoch) {
  expect_all_well(run_world({0, 0}, [](Group& all, cluster::Site& site) {
    const Group pair = all.split(0);
    all.comm().barrier("both have it");
    site.begin_epoch(3);
    for (const Group* group : std::initializer_list<const Group*>{&all, &pair}) {
      try {
        group->comm();
        ADD_FAILURE() << "still of use";
      } catch (const InvalidArgument& error) {
        for (const char* part : {"ranks 0, 1 of epoch 0", "its epoch is 3 now"})
          EXPECT_NE(std::string(error.what()).find(part), std::string::npos) << error.what();
      }
      EXPECT_THROW(group->local(), InvalidArgument);
      EXPECT_THROW(group->lane(), InvalidArgument);
      EXPECT_THROW(group->split(0), InvalidArgument);
    }
    EXPECT_EQ(all.size(), 2);  // it still knows what it was
  }));
}

TEST(Epoch, AFailureEndsTheWaitsOfAllItsGroupsAndOfLaterOnesNot) {
  std::latch done(4);  // who leaves is another reason for errors
  expect_all_well(run_world({0, 0, 1, 1}, [&](Group& all, cluster::Site& site) {
    const Group across = all.split(all.rank() % 2);
    all.comm().barrier("all have it");
    const std::exception_ptr cause = std::make_exception_ptr(PeerLost("rank 9 is gone"));
    if (all.rank() != 0) {  // waits for rank 0
      std::thread late([&] { site.interrupt_before(1, cause); });
      expect_error<PeerLost>(
          [&]() -> std::exception_ptr {
            try {
              (all.rank() == 2 ? across : all).comm().barrier("never");
              return nullptr;
            } catch (...) {
              return std::current_exception();
            }
          }(),
          {"rank 9 is gone"});
      late.join();
    } else {
      site.interrupt_before(1, cause);
      EXPECT_THROW(across.comm().barrier("later"), PeerLost);
    }
    done.arrive_and_wait();
  }));
}

}  // namespace
}  // namespace trireme::tests
