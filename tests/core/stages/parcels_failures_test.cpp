// label: multiproc
// What ranks of a pipeline hear when a peer is late or is killed.
#include <gtest/gtest.h>
#include <sys/socket.h>

#include <csignal>

#include "../cluster/groups.h"
#include "../comm/process.h"
#include "parcel_contents.h"

namespace trireme::tests {
namespace {

// ---- late ----

TEST(LateParcels, ATimeoutSaysWhoAndWhat) {
  for (const std::vector<int>& machines : {std::vector{0, 0}, std::vector{0, 1}}) {
    std::atomic<bool> over{false};
    const Outcomes outcomes = run_world(
        machines,
        [&](Group& group, cluster::Site&) {
          Parcels parcels(group, 2);
          if (group.rank() == 1) {
            send_bytes(parcels, 1, 0, {What::gradient, 2}, 10);  // another one
            over.wait(false);
            return;
          }
          const std::shared_ptr<void> end(nullptr, [&](void*) {
            over.store(true);
            over.notify_all();
          });
          parcels.receive(1, {What::gradient, 3, 1});
        },
        Seconds(0.3));
    expect_error<Timeout>(outcomes[0], {"rank 1", "gradient of micro-batch 3 for chunk 1", "0.3 s", "rank 0"});
  }
}

TEST(LateParcels, ASenderThatMayNotSendMoreSaysWhy) {
  std::atomic<bool> over{false};
  const Outcomes outcomes = run_world(
      {0, 0},
      [&](Group& group, cluster::Site&) {
        Parcels parcels(group, 2);
        if (group.rank() == 1) {
          const Parcel first = parcels.receive(0, {What::activation, 0}),
                       second = parcels.receive(0, {What::activation, 1});
          over.wait(false);
          return;
        }
        const std::shared_ptr<void> end(nullptr, [&](void*) {
          over.store(true);
          over.notify_all();
        });
        for (int micro = 0; micro < 3; micro++) send_bytes(parcels, 0, 1, {What::activation, micro}, 10);
      },
      Seconds(0.3));
  expect_error<Timeout>(outcomes[0], {"rank 1", "activation of micro-batch 2", "of the 2 before it, none was let go"});
}

TEST(LateParcels, RanksThatAreNotThereAreRefused) {
  expect_all_well(run_world({0, 0}, [](Group& group, cluster::Site&) {
    EXPECT_THROW(Parcels(group, 0), InvalidArgument);
    Parcels parcels(group, 1);
    EXPECT_THROW(parcels.send(group.rank(), {}, {}), InvalidArgument);
    EXPECT_THROW(parcels.receive(2, {}), InvalidArgument);
    EXPECT_THROW(parcels.arrived(-1, {}), InvalidArgument);
  }));
}

// ---- killed ----

/// Answers what ranks ask each other at the start; the same in all processes.
class FixedAnswers final : public comm::network::KeyValue {
 public:
  void put(const std::string&, const std::string&) override {}
  std::string get(const std::string&, const Deadline&) override { return "16384"; }
};

/// Two ranks, which are processes: on one machine, or on two that are connected by sockets.
class Pair {
 public:
  using Body = std::function<void(Group&, const Process::Say&)>;
  Pair(bool one_machine, const Body& body) {
    const auto segment = Segment::create(size_t{1} << 32);
    const size_t control = Areas(*segment).claim(comm::shm::Rounds::bytes(2), "a test");
    std::vector<std::vector<Descriptor>> ends(2);  // by rank: one for each communicator
    for (int i = 0; i < 2; i++) {
      int pair[2];
      if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair) != 0) throw std::runtime_error("no socket pair");
      for (size_t rank : {0, 1}) ends[rank].emplace_back(pair[rank]);
    }
    for (int rank : {0, 1})
      ranks_.push_back(std::make_unique<Process>([&](const Process::Say& say) {
        auto mine = std::move(ends[static_cast<size_t>(rank)]);
        ends.clear();  // or the other's death would not be seen
        const comm::network::Engine engine{"sockets", "", [&](const comm::network::Meeting&) {
                                             std::vector<Descriptor> sockets(2);
                                             sockets[static_cast<size_t>(1 - rank)] = std::move(mine.back());
                                             mine.pop_back();
                                             return std::make_unique<SocketTransport>(rank, std::move(sockets));
                                           }};
        FixedAnswers store;
        metrics::Registry registry;
        const auto own = one_machine ? segment : Segment::create(size_t{1} << 32);
        const size_t at = one_machine ? control : Areas(*own).claim(comm::shm::Rounds::bytes(1), "a test");
        const auto site = std::make_shared<cluster::Site>(cluster::Facts{.job = "test",
                                                                         .rank = rank,
                                                                         .machine_of = {0, one_machine ? 0 : 1},
                                                                         .segment = own,
                                                                         .store = &store,
                                                                         .engine = &engine,
                                                                         .address = "",
                                                                         .timeout = Seconds(60),
                                                                         .registry = &registry});
        Group group(site, {.ranks = {0, 1}}, at);
        body(group, say);
      }));
  }
  Process& operator[](size_t rank) { return *ranks_[rank]; }

 private:
  std::vector<std::unique_ptr<Process>> ranks_;
};

TEST(KilledRanks, AreNamedToWhoWaitsForTheirParcels) {
  for (const bool one_machine : {true, false}) {
    Pair ranks(one_machine, [](Group& group, const Process::Say& say) {
      Parcels parcels(group, 4);
      const int peer = 1 - group.rank();
      for (int micro = 0; micro < 5; micro++) {
        send_bytes(parcels, group.rank(), peer, {What::activation, micro}, 100000);
        expect_bytes(parcels.receive(peer, {What::activation, micro}), peer, group.rank(), {What::activation, micro},
                     100000);
      }
      say("running");
      if (group.rank() == 1) pause();
      parcels.receive(1, {What::gradient, 9});
    });
    for (size_t rank : {0, 1}) ASSERT_EQ(ranks[rank].next_line(), "running");
    kill(ranks[1].pid(), SIGKILL);
    expect_within(ranks[0].next_line(), {"PeerLost: rank 1", "gradient of micro-batch 9 for chunk 0"});
  }
}

TEST(KilledRanks, AreNamedToWhoWaitsToSend) {
  for (const bool one_machine : {true, false}) {
    Pair ranks(one_machine, [](Group& group, const Process::Say& say) {
      Parcels parcels(group, 2);
      const auto pid = static_cast<int32_t>(getpid());
      if (group.rank() == 1) {
        parcels.send(0, {}, std::vector<TensorView>{{"", DType::i32, {}, &pid}});
        parcels.flush();
        say("running");
        pause();
      }
      const Parcel other = parcels.receive(1, {});
      kill(*static_cast<const int32_t*>(other.tensors[0].data), SIGSTOP);  // it takes nothing any more
      say("running");
      for (int micro = 0; micro < 6; micro++) send_bytes(parcels, 0, 1, {What::gradient, micro}, 2 << 20);
      parcels.flush();
    });
    ASSERT_EQ(ranks[0].next_line(), "running");
    kill(ranks[1].pid(), SIGKILL);
    expect_within(ranks[0].next_line(), {"PeerLost: rank 1", "gradient of micro-batch"});
  }
}

}  // namespace
}  // namespace trireme::tests
