// label: multiproc
// Parcels between four ranks: on one machine, each on its own, and two and two. The same must hold for all.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <random>
#include <thread>

#include "../cluster/groups.h"
#include "parcel_contents.h"

namespace trireme::tests {
namespace {

using Body = std::function<void(Group&, Parcels&)>;

/// What was expected has come: the group is there for others again.
void pass_on(Group& group) {
  const int32_t mine = group.rank();
  int32_t got = -1;
  const int from = (mine + 3) % 4;
  group.comm().send(&mine, 1, DType::i32, (mine + 1) % 4, "after parcels");
  group.comm().receive(&got, 1, DType::i32, from, "after parcels");
  EXPECT_EQ(got, from);
}

class ParcelsBetween : public testing::TestWithParam<std::vector<int>> {
 protected:
  static Outcomes run(size_t in_flight, const Body& body, Seconds timeout = Seconds(20)) {
    return run_world(
        GetParam(),
        [&](Group& group, cluster::Site&) {
          {
            Parcels parcels(group, in_flight);
            body(group, parcels);
          }
          pass_on(group);
          group.comm().barrier("the end");  // who leaves earlier would be missed
        },
        timeout);
  }
};

INSTANTIATE_TEST_SUITE_P(Machines, ParcelsBetween,
                         testing::Values(std::vector{0, 0, 0, 0}, std::vector{0, 1, 2, 3}, std::vector{0, 0, 1, 1}),
                         [](const auto& machines) {
                           return std::string(machines.param[3] == 0   ? "One"
                                              : machines.param[3] == 3 ? "Each"
                                                                       : "TwoAndTwo");
                         });

TEST_P(ParcelsBetween, AllTypesShapesAndNamesArriveAsTheyAre) {
  expect_all_well(run(8, [](Group& group, Parcels& parcels) {
    const int me = group.rank();
    const auto data = content(99, 4096);
    std::vector<TensorView> tensors;
    for (int type = 0; type <= static_cast<int>(DType::u8); type++) {
      const auto dtype = static_cast<DType>(type);
      tensors.push_back({fmt::format("skip {}", type), dtype, {3, type + 1, 2}, data.data()});
      tensors.push_back({"", dtype, {}, data.data() + 8});   // one element
      tensors.push_back({"empty", dtype, {0, 5}, nullptr});  // none
      tensors.push_back({"one more", dtype, {1, 1, 1, 1, 1, 1, 1, 7}, data.data() + 16});
    }
    for (int peer = 0; peer < group.size(); peer++)
      if (peer != me) {
        parcels.send(peer, {What::activation, 0, 1}, tensors);
        parcels.send(peer, {What::gradient, 0, 1}, {});  // a stage without inputs that need one
      }
    for (int peer = 0; peer < group.size(); peer++) {
      if (peer == me) continue;
      const Parcel parcel = parcels.receive(peer, {What::activation, 0, 1});
      ASSERT_EQ(parcel.tensors.size(), tensors.size());
      for (size_t i = 0; i < tensors.size(); i++) {
        EXPECT_EQ(parcel.tensors[i].name, tensors[i].name);
        EXPECT_EQ(parcel.tensors[i].dtype, tensors[i].dtype);
        EXPECT_EQ(parcel.tensors[i].sizes, tensors[i].sizes);
        EXPECT_EQ(reinterpret_cast<uintptr_t>(parcel.tensors[i].data) % 64, 0U);
        EXPECT_EQ(std::memcmp(parcel.tensors[i].data, tensors[i].data, tensors[i].bytes()), 0);
      }
      EXPECT_TRUE(parcels.receive(peer, {What::gradient, 0, 1}).tensors.empty());
    }
  }));
}

TEST_P(ParcelsBetween, AskedForInAnotherOrderThanSent) {
  expect_all_well(run(64, [](Group& group, Parcels& parcels) {
    const int me = group.rank(), to = (me + 1) % 4, from = (me + 3) % 4;
    for (int micro = 0; micro < 20; micro++)
      for (const What what : {What::activation, What::gradient})
        for (int chunk = 0; chunk < 2; chunk++) send_bytes(parcels, me, to, {what, micro, chunk}, 5000);
    for (int micro = 19; micro >= 0; micro--)
      for (int chunk = 0; chunk < 2; chunk++)
        for (const What what : {What::gradient, What::activation}) {
          const Label label{what, micro, chunk};
          expect_bytes(parcels.receive(from, label), from, me, label, 5000);
        }
  }));
}

TEST_P(ParcelsBetween, ALabelThatComesAgainComesInOrder) {
  expect_all_well(run(10, [](Group& group, Parcels& parcels) {
    const int me = group.rank(), to = me ^ 1, across = me ^ 2;
    for (int step = 0; step < 10; step++)
      for (const int peer : {to, across}) send_bytes(parcels, me, peer, {}, 3000, step);
    for (int step = 0; step < 10; step++)
      for (const int peer : {to, across}) expect_bytes(parcels.receive(peer, {}), peer, me, {}, 3000, step);
  }));
}

TEST_P(ParcelsBetween, SendingDoesNotWaitForAReceiverWithinTheLimit) {
  constexpr size_t kInFlight = 12;
  std::atomic<int> done{0};
  expect_all_well(run(kInFlight, [&](Group& group, Parcels& parcels) {
    const int me = group.rank();
    for (int peer = 0; peer < 4; peer++)
      for (int micro = 0; peer != me && micro < static_cast<int>(kInFlight); micro++)
        for (const What what : {What::activation, What::gradient})
          send_bytes(parcels, me, peer, {what, micro, 0}, 300000);
    done.fetch_add(1);  // nobody takes anything before all have sent all
    done.notify_all();
    for (int now = done.load(); now < 4; now = done.load()) done.wait(now);
    std::vector<Parcel> held;
    for (int peer = 0; peer < 4; peer++)
      for (int micro = 0; peer != me && micro < static_cast<int>(kInFlight); micro++)
        for (const What what : {What::activation, What::gradient}) {
          held.push_back(parcels.receive(peer, {what, micro, 0}));
          expect_bytes(held.back(), peer, me, {what, micro, 0}, 300000);
        }
  }));
}

TEST_P(ParcelsBetween, ASenderBeyondTheLimitGoesOnWhenAParcelIsLetGo) {
  expect_all_well(run(2, [](Group& group, Parcels& parcels) {
    const int me = group.rank(), to = me ^ 1;
    for (int micro = 0; me % 2 == 0 && micro < 100; micro++) send_bytes(parcels, me, to, {What::activation, micro}, 50);
    for (int micro = 0; me % 2 == 1 && micro < 100; micro++)
      expect_bytes(parcels.receive(to, {What::activation, micro}), to, me, {What::activation, micro}, 50);
  }));
}

TEST_P(ParcelsBetween, WhoSleepsIsWoken) {
  expect_all_well(run(
      1,
      [](Group& group, Parcels& parcels) {
        const int me = group.rank();
        const Label first{What::activation, 1}, second{What::activation, 2};
        if (me == 0) {  // sleeps until 1 sends, and 1 until 0 lets go
          Parcel parcel = parcels.receive(1, first);
          std::this_thread::sleep_for(std::chrono::milliseconds(200));
          expect_bytes(parcel, 1, 0, first, 1000);
          parcel = {};
          expect_bytes(parcels.receive(1, second), 1, 0, second, 1000);
        }
        if (me == 1) {
          std::this_thread::sleep_for(std::chrono::milliseconds(200));
          for (const Label& label : {first, second}) send_bytes(parcels, 1, 0, label, 1000);
        }
      },
      Seconds(5)));
}

TEST_P(ParcelsBetween, ViewsStayAsTheyAreWhileTheyAreHeld) {
  struct Held {
    Parcel parcel;
    int from, to;
    Label label;
  };
  std::vector<std::vector<Held>> held(4);
  expect_all_well(run(40, [&](Group& group, Parcels& parcels) {
    const int me = group.rank();
    auto& mine = held[static_cast<size_t>(me)];
    for (int micro = 0; micro < 30; micro++) {  // every third is held for good, the others' memory is used again
      for (int peer = 0; peer < 4; peer++)
        if (peer != me) send_bytes(parcels, me, peer, {What::gradient, micro}, 20000);
      for (int peer = 0; peer < 4; peer++) {
        if (peer == me) continue;
        Parcel parcel = parcels.receive(peer, {What::gradient, micro});
        if (micro % 3 == 0) mine.push_back({parcel, peer, me, {What::gradient, micro}});
      }
      for (const Held& old : mine) expect_bytes(old.parcel, old.from, old.to, old.label, 20000);
    }
  }));
  for (const auto& of_rank : held) {  // the groups are gone
    ASSERT_EQ(of_rank.size(), 30U);
    for (const Held& old : of_rank) expect_bytes(old.parcel, old.from, old.to, old.label, 20000);
  }
}

TEST_P(ParcelsBetween, LargeParcelsInBothDirections) {
  expect_all_well(run(2, [](Group& group, Parcels& parcels) {
    const int me = group.rank(), peer = 3 - me;
    const Label mine{me < 2 ? What::activation : What::gradient, 7},
        theirs{me < 2 ? What::gradient : What::activation, 7};
    if (me == 0 || me == 3) {
      parcels.expect(peer, theirs);
      send_bytes(parcels, me, peer, mine, 64 << 20);
      expect_bytes(parcels.receive(peer, theirs), peer, me, theirs, 64 << 20);
    }
  }));
}

TEST_P(ParcelsBetween, ArrivedTellsWithoutWaiting) {
  std::atomic<int> phase{0};
  const auto reach = [&](int next) {
    phase.store(next);
    phase.notify_all();
  };
  expect_all_well(run(2, [&](Group& group, Parcels& parcels) {
    const Label label{What::gradient, 4, 1}, other{What::activation, 4, 1};
    if (group.rank() == 1) {
      EXPECT_FALSE(parcels.arrived(2, label));
      EXPECT_FALSE(parcels.arrived(2, label));
      reach(1);
      while (!parcels.arrived(2, label)) std::this_thread::yield();
      EXPECT_FALSE(parcels.arrived(2, other));
      expect_bytes(parcels.receive(2, label), 2, 1, label, 100);
      EXPECT_FALSE(parcels.arrived(2, label));
      reach(2);
      for (const Label& more : {label, other}) expect_bytes(parcels.receive(2, more), 2, 1, more, 60);
    }
    if (group.rank() == 2) {
      phase.wait(0);
      send_bytes(parcels, 2, 1, label, 100);
      phase.wait(1);
      for (const Label& more : {other, label}) send_bytes(parcels, 2, 1, more, 60);
    }
  }));
}

// ---- memory ----

/// As a pipeline does: activations forward, held until the gradients have come back; the last micro-batch is smaller.
void step_of_pipeline(Group& group, Parcels& parcels, int micros, int step) {
  const int me = group.rank(), last = group.size() - 1;
  const auto bytes = [&](int micro) { return size_t{50000} / (micro == micros - 1 ? 3 : 1); };
  std::vector<Parcel> inputs;
  for (int micro = 0; micro < micros; micro++) {
    const Label label{What::activation, micro};
    if (me > 0) {
      inputs.push_back(parcels.receive(me - 1, label));
      expect_bytes(inputs.back(), me - 1, me, label, bytes(micro), step);
    }
    if (me < last) send_bytes(parcels, me, me + 1, label, bytes(micro), step);
  }
  for (int micro = 0; micro < micros; micro++) {
    const Label label{What::gradient, micro}, input{What::activation, micro};
    if (me < last) expect_bytes(parcels.receive(me + 1, label), me + 1, me, label, bytes(micro), step);
    if (me > 0) {
      expect_bytes(inputs[static_cast<size_t>(micro)], me - 1, me, input, bytes(micro), step);
      inputs[static_cast<size_t>(micro)] = {};
      send_bytes(parcels, me, me - 1, label, bytes(micro), step);
    }
  }
  parcels.flush();
}

/// As much in flight as ever.
void fill_pipeline(Group& group, Parcels& parcels, int micros) {
  const int me = group.rank(), last = group.size() - 1;
  for (int micro = 0; micro < micros; micro++) {
    if (me < last) send_bytes(parcels, me, me + 1, {What::activation, micro}, 50000);
    if (me > 0) send_bytes(parcels, me, me - 1, {What::gradient, micro}, 50000);
  }
  group.comm().barrier("all was sent");
  for (int micro = 0; micro < micros; micro++) {
    if (me > 0) parcels.receive(me - 1, {What::activation, micro});
    if (me < last) parcels.receive(me + 1, {What::gradient, micro});
  }
  group.comm().barrier("all was let go");
}

TEST_P(ParcelsBetween, SharedMemoryStaysAsLargeAsItWasOnce) {
  expect_all_well(run(8, [](Group& group, Parcels& parcels) {
    fill_pipeline(group, parcels, 8);
    const size_t parcels_before = parcels.shared_bytes(), all_before = machine_bytes(group);
    const int me = group.rank();
    size_t buffers = 0;
    for (const int peer : {me - 1, me + 1})
      if (peer >= 0 && peer < 4 && group.machine_of(peer) == group.machine_of(me)) buffers += 8;
    EXPECT_GE(parcels_before, buffers * 50000);
    EXPECT_LE(parcels_before, buffers * 61440);  // whole pages, a little room to grow
    for (int step = 0; step < 40; step++) {
      step_of_pipeline(group, parcels, 8, step);
      EXPECT_EQ(parcels.shared_bytes(), parcels_before) << "step " << step;
    }
    group.comm().barrier("all have their memory");
    EXPECT_EQ(machine_bytes(group), all_before);
    group.comm().barrier("all have looked");
  }));
}

TEST_P(ParcelsBetween, BuffersOfManySizesDoNotAddUp) {
  constexpr size_t kLargest = 400000;
  expect_all_well(run_world(GetParam(), [&](Group& group, cluster::Site&) {
    const size_t before = machine_bytes(group);
    for (int round = 0; round < 2; round++) {
      Parcels parcels(group, 3);
      std::mt19937 random(7);  // the same on all ranks
      const int me = group.rank(), to = (me + 1) % 4, from = (me + 3) % 4;
      for (int i = 0; i < 100; i++) {
        size_t sizes[3];
        for (size_t& size : sizes) size = random() % kLargest;
        for (int k = 0; k < 3; k++) send_bytes(parcels, me, to, {What::activation, k}, sizes[k]);
        for (int k = 0; k < 3; k++)
          expect_bytes(parcels.receive(from, {What::activation, k}), from, me, {What::activation, k}, sizes[k]);
        EXPECT_LE(parcels.shared_bytes(), 3 * (kLargest + kLargest / 8));
        group.comm().barrier("all was let go");
      }
      EXPECT_LE(machine_bytes(group), before + 4 * (3 * (kLargest + kLargest / 8) + 3 * kPage));
    }
    group.comm().barrier("the end");
    EXPECT_LE(machine_bytes(group), before + 2 * 4 * kPage) << "of the rings alone";
  }));
}

// ---- at random ----

struct Move {
  int from, to;
  Label label;
  size_t bytes;
  int hold;  // parcels that the receiver takes before it lets go of this one
};

/// Of one round: labels are unique between a pair.
std::vector<Move> plan_moves(std::mt19937& random, int count) {
  std::vector<Move> moves;
  for (int i = 0; i < count; i++) {
    const int from = static_cast<int>(random() % 4), to = (from + 1 + static_cast<int>(random() % 3)) % 4;
    const Label label{random() % 2 == 0 ? What::activation : What::gradient, i, static_cast<int>(random() % 3)};
    const size_t bytes = random() % 50 == 0 ? random() % 500000 : random() % 5000;
    moves.push_back({from, to, label, bytes, static_cast<int>(random() % 15)});
  }
  return moves;
}

TEST_P(ParcelsBetween, TenThousandParcelsAtRandom) {
  constexpr int kRounds = 50, kMoves = 200;
  std::atomic<int> received{0};
  expect_all_well(run(kMoves, [&](Group& group, Parcels& parcels) {
    std::mt19937 plan(20), own(static_cast<uint32_t>(group.rank()));
    const int me = group.rank();
    std::vector<std::pair<Move, Parcel>> held;
    for (int round = 0; round < kRounds; round++) {
      std::vector<Move> sends, receives;
      for (const Move& move : plan_moves(plan, kMoves)) {
        if (move.from == me) sends.push_back(move);
        if (move.to == me) receives.push_back(move);
      }
      std::shuffle(sends.begin(), sends.end(), own);
      std::shuffle(receives.begin(), receives.end(), own);
      for (const Move& move : receives)
        if (own() % 2 == 0) parcels.expect(move.from, move.label);
      while (!sends.empty() || !receives.empty()) {
        const bool sending = receives.empty() || (!sends.empty() && own() % 2 == 0);
        const Move move = sending ? sends.back() : receives.back();
        if (sending) {
          send_bytes(parcels, me, move.to, move.label, move.bytes, round);
          sends.pop_back();
          continue;
        }
        if (!sends.empty() && !parcels.arrived(move.from, move.label)) continue;  // or all would wait for each other
        held.emplace_back(move, parcels.receive(move.from, move.label));
        receives.pop_back();
        received.fetch_add(1);
        for (auto& [old, parcel] : held)
          if (old.hold-- == 0) expect_bytes(parcel, old.from, me, old.label, old.bytes, round);
        std::erase_if(held, [](const auto& old) { return old.first.hold < 0; });
      }
      for (auto& [old, parcel] : held) expect_bytes(parcel, old.from, me, old.label, old.bytes, round);
      held.clear();
    }
  }));
  EXPECT_EQ(received.load(), kRounds * kMoves);
}

}  // namespace
}  // namespace trireme::tests
