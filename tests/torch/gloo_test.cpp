// label: multiproc
// The contract of comm::Communicator on libtorch's Gloo, ranks as threads that meet on loopback.
#include <trireme/comm/network/engine.h>

#include "../core/comm/board.h"
#include "../core/comm/contract.h"
#include "../core/comm/network_ranks.h"

namespace trireme::tests {
namespace {

using comm::network::engine_named;

Outcomes run_gloo(int ranks, const std::function<void(comm::network::Communicator&)>& body,
                  const comm::network::Options& options = {}) {
  Board board;
  Outcomes outcomes(static_cast<size_t>(ranks));
  std::vector<std::thread> threads;
  for (int rank = 0; rank < ranks; rank++)
    threads.emplace_back([&, rank] {
      try {
        auto transport = engine_named("gloo").connect({.store = board,
                                                       .name = "test",
                                                       .rank = rank,
                                                       .size = ranks,
                                                       .address = "127.0.0.1",
                                                       .timeout = Seconds(20)});
        comm::network::Communicator group(std::move(transport), options);
        body(group);
      } catch (...) {
        outcomes[static_cast<size_t>(rank)] = std::current_exception();
      }
    });
  for (std::thread& thread : threads) thread.join();
  return outcomes;
}

Engine gloo_engine() {
  const auto memory = std::make_shared<Memory>();
  return {"gloo",
          [=](int ranks, const auto& body) {
            expect_all_well(run_gloo(ranks, body));
            memory->clear();
          },
          [=](Communicator&, size_t bytes) { return memory->take(bytes); }};
}

INSTANTIATE_TEST_SUITE_P(Engines, Contract,
                         testing::Combine(testing::Values(gloo_engine()), testing::Values(1, 2, 3, 8)), case_name);

TEST(Gloo, DifferentCallsAreAMismatch) {
  for (const auto& outcome : run_gloo(2, [](comm::network::Communicator& group) {
         std::vector<float> data(100000);
         group.allreduce(data.data(), group.rank() == 0 ? 100000 : 99999, DType::f32, Op::sum, "weights");
       }))
    expect_error<Mismatch>(outcome, {"weights", "100000", "99999"});
}

TEST(Gloo, InterruptEndsAWait) {
  const auto outcomes = run_gloo(2, [](comm::network::Communicator& group) {
    if (group.rank() == 1) {
      group.barrier("both are here");
      std::this_thread::sleep_for(std::chrono::milliseconds(400));
      return;
    }
    group.barrier("both are here");
    std::thread messenger([&] {
      std::this_thread::sleep_for(std::chrono::milliseconds(50));
      group.interrupt(std::make_exception_ptr(PeerLost("host b has burnt down")));
    });
    try {
      group.barrier("nobody comes");
    } catch (...) {
      messenger.join();
      throw;
    }
    messenger.join();
  });
  expect_error<PeerLost>(outcomes[0], {"host b has burnt down"});
}

TEST(Gloo, ARankThatDoesNotComeIsATimeout) {
  const auto outcomes = run_gloo(2,
                                 [](comm::network::Communicator& group) {
                                   if (group.rank() == 0) return group.barrier("alone");
                                   std::this_thread::sleep_for(std::chrono::milliseconds(1500));
                                 },
                                 {.timeout = Seconds(0.5)});
  expect_error<Timeout>(outcomes[0], {"rank 1", "alone"});
}

}  // namespace
}  // namespace trireme::tests
