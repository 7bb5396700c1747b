// label: unit
// Ranks of a network that disagree, leave, never come or are given up: an error that names them, never a hang.
// Whatever connects them: an engine's name leads to all of it.
#include <atomic>

#include "stream_ranks.h"

namespace trireme::tests {
namespace {

using Group = comm::network::Communicator;
using comm::network::Options;

struct Way {
  const char* name;
  Connect connect;
};

class OnNetwork : public testing::TestWithParam<Way> {
 protected:
  void SetUp() override { connect_here() = GetParam().connect; }
  void TearDown() override { connect_here() = connect_by_sockets; }
};
class NetworkMismatch : public OnNetwork {};
class NetworkLeaving : public OnNetwork {};
class NetworkAbsent : public OnNetwork {};
class NetworkFailure : public OnNetwork {};
class NetworkInterrupt : public OnNetwork {};
class NetworkDestructor : public OnNetwork {};

const auto kWays = testing::Values(Way{"sockets", connect_by_sockets},
                                   Way{"stream", [](int ranks) { return connect_by_streams(ranks); }});
const auto way_name = [](const auto& info) { return std::string(info.param.name); };
INSTANTIATE_TEST_SUITE_P(Ways, NetworkMismatch, kWays, way_name);
INSTANTIATE_TEST_SUITE_P(Ways, NetworkLeaving, kWays, way_name);
INSTANTIATE_TEST_SUITE_P(Ways, NetworkAbsent, kWays, way_name);
INSTANTIATE_TEST_SUITE_P(Ways, NetworkFailure, kWays, way_name);
INSTANTIATE_TEST_SUITE_P(Ways, NetworkInterrupt, kWays, way_name);
INSTANTIATE_TEST_SUITE_P(Ways, NetworkDestructor, kWays, way_name);

/// Rank 0 does one thing, the others another; all must get a Mismatch that names both ranks and both calls.
void expect_mismatch(const std::function<void(Group&)>& first, const std::function<void(Group&)>& others,
                     const std::vector<std::string>& parts) {
  for (int ranks : {2, 3}) {
    const Outcomes outcomes = run_network(
        ranks, [&](Group& group) { group.rank() == 0 ? first(group) : others(group); }, {.timeout = Seconds(20)});
    for (int rank = 0; rank < ranks; rank++) {
      SCOPED_TRACE(fmt::format("rank {} of {}", rank, ranks));
      expect_error<Mismatch>(outcomes[static_cast<size_t>(rank)], parts);
      expect_error<Mismatch>(outcomes[static_cast<size_t>(rank)],
                             {"rank 0", rank == 0 ? "rank 1" : fmt::format("rank {}", rank)});
    }
  }
}

std::function<void(Group&)> allreduce(size_t count, DType type, Op op, const char* name) {
  return [=](Group& group) {
    std::vector<double> mine(count);
    group.allreduce(mine.data(), count, type, op, name);
  };
}

TEST_P(NetworkMismatch, OfOrder) {
  const auto weight = allreduce(5, DType::f32, Op::sum, "fc1.weight"),
             bias = allreduce(5, DType::f32, Op::sum, "fc1.bias");
  expect_mismatch([&](Group& g) { weight(g), bias(g); }, [&](Group& g) { bias(g), weight(g); },
                  {"'fc1.weight'", "'fc1.bias'", "allreduce"});
}

TEST_P(NetworkMismatch, OfOrderInAnEpoch) {
  const auto weight = allreduce(50000, DType::f32, Op::sum, "fc1.weight"),
             bias = allreduce(5, DType::f32, Op::sum, "fc1.bias");
  expect_mismatch([&](Group& g) { weight(g), weight(g), bias(g); }, [&](Group& g) { weight(g), bias(g), weight(g); },
                  {"in collective 1:", "'fc1.weight' of 50000", "'fc1.bias' of 5"});
}

TEST_P(NetworkMismatch, OfKind) {
  expect_mismatch([](Group& g) { g.barrier("epoch"); }, allreduce(5, DType::f32, Op::sum, "loss"),
                  {"barrier 'epoch'", "allreduce (sum) 'loss'"});
}

TEST_P(NetworkMismatch, OfCount) {
  expect_mismatch(allreduce(5, DType::f32, Op::sum, "w"), allreduce(6, DType::f32, Op::sum, "w"),
                  {"'w' of 5 × f32", "'w' of 6 × f32"});
  expect_mismatch(allreduce(500000, DType::f32, Op::sum, "w"), allreduce(5, DType::f32, Op::sum, "w"),
                  {"500000 × f32", " 5 × f32"});
  expect_mismatch(allreduce(500000, DType::f32, Op::sum, "w"), allreduce(500001, DType::f32, Op::sum, "w"),
                  {"500000 × f32", "500001 × f32"});
}

TEST_P(NetworkMismatch, OfTypeAndOperation) {
  expect_mismatch(allreduce(5, DType::f32, Op::sum, "w"), allreduce(5, DType::i32, Op::sum, "w"),
                  {"'w' of 5 × f32", "'w' of 5 × i32"});
  expect_mismatch(allreduce(5, DType::f32, Op::sum, "w"), allreduce(5, DType::f32, Op::mean, "w"),
                  {"(sum) 'w'", "(mean) 'w'"});
}

TEST_P(NetworkMismatch, OfName) {
  const auto gather = [](std::string name) {
    return [name](Group& g) {
      std::vector<float> data(100);
      g.all_gather(data.data(), data.data() + 50, 2, DType::f32, name);
    };
  };
  expect_mismatch(gather("left"), gather("right"), {"all-gather 'left'", "all-gather 'right'"});
  const std::string stem(100, 'x');
  expect_mismatch(gather(stem + "1"), gather(stem + "2"), {"xxxxxxxxxx"});
}

TEST_P(NetworkMismatch, OfRoot) {
  const auto from = [](int root) {
    return [root](Group& g) {
      float x = 0;
      g.broadcast(&x, 1, DType::f32, root, "x");
    };
  };
  expect_mismatch(from(0), from(1), {"broadcast from rank 0 'x'", "broadcast from rank 1 'x'"});
}

TEST_P(NetworkMismatch, OfStartedAllreduces) {
  const auto start = [](const char* name) {
    return [name](Group& g) {
      std::vector<float> a(70000), b(70000);
      const auto first = g.start_allreduce(a.data(), a.size(), DType::f32, Op::sum, "same");
      const auto second = g.start_allreduce(b.data(), b.size(), DType::f32, Op::sum, name);
      first->wait();
      second->wait();
    };
  };
  expect_mismatch(start("conv1"), start("conv2"), {"'conv1'", "'conv2'"});
}

TEST_P(NetworkMismatch, OfBlocks) {
  const auto scatter = [](std::vector<size_t> counts) {
    return [counts](Group& g) {
      std::vector<size_t> mine = counts;
      mine.resize(static_cast<size_t>(g.size()));
      std::vector<float> input(500000), output(500000);
      g.reduce_scatter(input.data(), output.data(), mine, DType::f32, Op::sum, "blocks");
    };
  };
  expect_mismatch(scatter({5, 7}), scatter({5, 8}), {"block 1 has ", "7 ", "8 ", "'blocks'"});
  expect_mismatch(scatter({200000, 7}), scatter({7, 200000}), {"block 0 has ", "200000 "});
}

TEST_P(NetworkMismatch, OfWhatIsSentAndExpected) {
  const Outcomes outcomes = run_network(2, [](Group& g) {
    std::vector<float> input(100), output(100);
    const std::vector<size_t> sends = {1, 1}, receives = {1, g.rank() == 0 ? 2u : 1u};
    g.all_to_all(input.data(), output.data(), sends, receives, DType::f32, "letters");
  });
  for (const auto& outcome : outcomes)
    expect_error<Mismatch>(outcome, {"'letters'", "rank 1 sends 1 elements to rank 0, which expects 2"});
}

TEST_P(NetworkMismatch, OfOptions) {
  auto transports = connect_here()(2);
  std::exception_ptr errors[2];
  std::vector<std::thread> threads;
  for (size_t rank = 0; rank < 2; rank++)
    threads.emplace_back([&, rank] {
      Group group(std::move(transports[rank]), {.timeout = Seconds(20), .direct_bytes = rank * 1000, .names = {3, 7}});
      try {
        allreduce(5, DType::f32, Op::sum, "w")(group);
      } catch (...) {
        errors[rank] = std::current_exception();
      }
    });
  for (std::thread& thread : threads) thread.join();
  for (const auto& error : errors) expect_error<Mismatch>(error, {"direct_bytes", "rank 3", "rank 7", "'w'"});
}

TEST_P(NetworkMismatch, OfMessages) {
  const auto exchange = [](size_t sent, DType sent_type, const char* sent_name) {
    return run_network(2,
                       [=](Group& group) {
                         std::vector<int64_t> room(4000);
                         group.rank() == 0 ? group.send(room.data(), sent, sent_type, 1, sent_name)
                                           : group.receive(room.data(), 2, DType::f32, 0, "activations");
                       },
                       {.timeout = Seconds(5)});
  };
  EXPECT_FALSE(exchange(2, DType::f32, "activations")[1]);
  expect_error<Mismatch>(exchange(3, DType::f32, "activations")[1],
                         {"rank 1 expects 'activations' of 2 × f32 from rank 0", "sent 'activations' of 3 × f32"});
  expect_error<Mismatch>(exchange(3000, DType::f32, "activations")[1], {"2 × f32", "3000 × f32"});
  expect_error<Mismatch>(exchange(2, DType::f16, "activations")[1], {"2 × f32", "2 × f16"});
  expect_error<Mismatch>(exchange(2, DType::f32, "gradients")[1], {"'activations'", "'gradients'"});
}

// ---- who is not there ----

TEST_P(NetworkLeaving, EarlyIsAPeerLostForTheOthers) {
  const Outcomes outcomes = run_network(3, [](Group& group) {
    if (group.rank() != 1) group.barrier("epoch 7");
  });
  for (size_t rank : {0, 2}) expect_error<PeerLost>(outcomes[rank], {"lost", "barrier 'epoch 7'"});
  EXPECT_FALSE(outcomes[1]);
}

TEST_P(NetworkLeaving, IsToldWithItsNameAndTheCallThatNeededIt) {
  const Outcomes outcomes = run_network(2,
                                        [](Group& group) {
                                          std::vector<float> w(100000);
                                          group.allreduce(w.data(), w.size(), DType::f32, Op::sum, "first");
                                          if (group.rank() == 0)
                                            group.allreduce(w.data(), w.size(), DType::f32, Op::sum, "second");
                                        },
                                        {.names = {4, 9}});
  expect_error<PeerLost>(outcomes[0], {"rank 9 was lost", "rank 4 waited", "allreduce (sum) 'second' of 100000 × f32"});
}

TEST_P(NetworkLeaving, WhileAMessageIsAwaited) {
  const Outcomes outcomes = run_network(2, [](Group& group) {
    float x = 0;
    if (group.rank() == 0) group.receive(&x, 1, DType::f32, 1, "activations");
  });
  expect_error<PeerLost>(outcomes[0], {"rank 1 was lost", "'activations'"});
}

TEST_P(NetworkLeaving, AfterItsPartIsNoError) {
  for (int i = 0; i < 50; i++)
    expect_all_well(run_network(3, [&](Group& group) {
      std::vector<float> x(i % 2 == 0 ? 1 : 50000, 1.0f);
      group.allreduce(x.data(), x.size(), DType::f32, Op::sum, "last");
      EXPECT_EQ(x.back(), 3.0f);
      const int32_t word = 5;
      int32_t got = 0;
      if (group.rank() == 0) group.send(&word, 1, DType::i32, 1, "farewell");
      if (group.rank() == 1) group.receive(&got, 1, DType::i32, 0, "farewell");
      EXPECT_EQ(got, group.rank() == 1 ? 5 : 0);
    }));
}

/// Rank 1 stays, but takes no part until rank 0 is through with it.
Outcomes run_with_an_absent_rank(const std::function<void(Group&)>& body, const Options& options) {
  std::atomic<bool> over{false};
  return run_network(
      2,
      [&](Group& group) {
        if (group.rank() == 1) {
          over.wait(false);
          return;
        }
        try {
          body(group);
        } catch (...) {
          over = true;
          over.notify_all();
          throw;
        }
        over = true;
        over.notify_all();
      },
      options);
}

TEST_P(NetworkAbsent, RankIsATimeoutThatNamesIt) {
  const Options options{.timeout = Seconds(0.2), .names = {}};
  expect_error<Timeout>(run_with_an_absent_rank([](Group& group) { group.barrier("gate"); }, options)[0],
                        {"rank 1", "barrier 'gate'", "0.2 s"});
  float x = 0;
  expect_error<Timeout>(
      run_with_an_absent_rank([&](Group& group) { group.receive(&x, 1, DType::f32, 1, "word"); }, options)[0],
      {"rank 1", "'word'", "0.2 s"});
}

TEST_P(NetworkFailure, StaysTheSameForEverythingThatWasQueuedAndThatFollows) {
  const Outcomes outcomes = run_with_an_absent_rank(
      [](Group& group) {
        std::vector<std::vector<float>> data(10, std::vector<float>(30000));
        std::vector<std::unique_ptr<comm::Work>> works;
        for (auto& vector : data)
          works.push_back(group.start_allreduce(vector.data(), vector.size(), DType::f32, Op::sum, "bucket"));
        std::vector<std::string> messages;
        const auto note = [&](const auto& action) {
          try {
            action();
            messages.emplace_back("no error");
          } catch (const Timeout& error) {
            messages.emplace_back(error.what());
          }
        };
        for (const auto& work : works) note([&] { work->wait(); });
        float x = 0;
        note([&] { works[0]->test(); });
        note([&] { group.barrier("later"); });
        note([&] { group.send(&x, 1, DType::f32, 1, "later"); });
        note([&] { group.receive(&x, 1, DType::f32, 1, "later"); });
        for (const std::string& message : messages) EXPECT_EQ(message, messages[0]);
        EXPECT_NE(messages[0].find("'bucket'"), std::string::npos) << messages[0];
      },
      {.timeout = Seconds(0.2), .names = {}});
  expect_all_well(outcomes);
}

TEST_P(NetworkInterrupt, EndsEveryWaitWithItsCause) {
  for (bool message : {false, true}) {
    const Outcomes outcomes = run_with_an_absent_rank(
        [&](Group& group) {
          std::thread other([&] {
            std::this_thread::sleep_for(
                std::chrono::milliseconds(50));  // most likely in the middle of the wait; before it is as good
            group.interrupt(std::make_exception_ptr(PeerLost("host b is on fire")));
            group.interrupt(std::make_exception_ptr(PeerLost("too late")));
          });
          float x = 0;
          const auto expect_cause = [&](const auto& action) {
            try {
              action();
              ADD_FAILURE() << "no error";
            } catch (const PeerLost& error) {
              EXPECT_STREQ(error.what(), "host b is on fire");
            }
          };
          expect_cause([&] { message ? group.receive(&x, 1, DType::f32, 1, "word") : group.barrier("gate"); });
          expect_cause([&] { group.barrier("later"); });
          expect_cause([&] { group.start_allreduce(&x, 1, DType::f32, Op::sum, "later")->wait(); });
          other.join();
        },
        {.timeout = Seconds(30), .names = {}});
    expect_all_well(outcomes);
  }
}

TEST_P(NetworkDestructor, DoesNotWaitForWhatWasNeverAwaited) {
  const auto start = Clock::now();
  std::unique_ptr<comm::Work> work;
  std::vector<float> data(200000);
  expect_all_well(run_network(2, [&](Group& group) {
    if (group.rank() == 0) work = group.start_allreduce(data.data(), data.size(), DType::f32, Op::sum, "forgotten");
    if (group.rank() == 1) std::this_thread::sleep_for(std::chrono::milliseconds(50));
  }));
  EXPECT_LT(seconds_since(start), 20);
  EXPECT_THROW(work->wait(), Error);
}

}  // namespace
}  // namespace trireme::tests
