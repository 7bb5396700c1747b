// label: unit
// Ranks that disagree, leave early or never come: an error that names them, never a hang.
#include <atomic>
#include <thread>

#include <trireme/comm/shm/communicator.h>

#include "ranks.h"

namespace trireme::tests {
namespace {

using Group = comm::shm::Communicator;

/// Rank 0 does one thing, the others another; all must get a Mismatch that names both ranks and both calls.
void expect_mismatch(const std::function<void(Group&)>& first, const std::function<void(Group&)>& others,
                     const std::vector<std::string>& parts) {
  for (int ranks : {2, 3}) {
    const Outcomes outcomes = run_ranks(ranks, [&](Group& group) { group.rank() == 0 ? first(group) : others(group); },
                                        {.timeout = Seconds(20)});
    for (int rank = 0; rank < ranks; rank++) {
      SCOPED_TRACE(fmt::format("rank {} of {}", rank, ranks));
      expect_error<Mismatch>(outcomes[static_cast<size_t>(rank)], parts);
      expect_error<Mismatch>(outcomes[static_cast<size_t>(rank)],
                             {"rank 0", rank == 0 ? "rank 1" : fmt::format("rank {}", rank)});
    }
  }
}

float data[4096];

void allreduce(Group& group, size_t count, DType type, Op op, const char* name) {
  std::vector<double> mine(count);
  group.allreduce(mine.data(), count, type, op, name);
}

TEST(Mismatch, OfOrder) {
  expect_mismatch(
      [](Group& g) {
        allreduce(g, 5, DType::f32, Op::sum, "fc1.weight"), allreduce(g, 5, DType::f32, Op::sum, "fc1.bias");
      },
      [](Group& g) {
        allreduce(g, 5, DType::f32, Op::sum, "fc1.bias"), allreduce(g, 5, DType::f32, Op::sum, "fc1.weight");
      },
      {"'fc1.weight'", "'fc1.bias'", "allreduce"});
}

TEST(Mismatch, OfKind) {
  expect_mismatch([](Group& g) { g.barrier("epoch"); }, [](Group& g) { allreduce(g, 5, DType::f32, Op::sum, "loss"); },
                  {"barrier 'epoch'", "allreduce (sum) 'loss'"});
}

TEST(Mismatch, OfCount) {
  expect_mismatch([](Group& g) { allreduce(g, 5, DType::f32, Op::sum, "w"); },
                  [](Group& g) { allreduce(g, 6, DType::f32, Op::sum, "w"); }, {"'w' of 5 × f32", "'w' of 6 × f32"});
}

TEST(Mismatch, OfCountInLargeData) {
  expect_mismatch([](Group& g) { allreduce(g, 500000, DType::f32, Op::sum, "w"); },
                  [](Group& g) { allreduce(g, 5, DType::f32, Op::sum, "w"); }, {"500000 × f32", " 5 × f32"});
}

TEST(Mismatch, OfType) {
  expect_mismatch([](Group& g) { allreduce(g, 5, DType::f32, Op::sum, "w"); },
                  [](Group& g) { allreduce(g, 5, DType::i32, Op::sum, "w"); }, {"'w' of 5 × f32", "'w' of 5 × i32"});
}

TEST(Mismatch, OfOperation) {
  expect_mismatch([](Group& g) { allreduce(g, 5, DType::f32, Op::sum, "w"); },
                  [](Group& g) { allreduce(g, 5, DType::f32, Op::mean, "w"); }, {"(sum) 'w'", "(mean) 'w'"});
}

TEST(Mismatch, OfName) {
  expect_mismatch([](Group& g) { g.all_gather(data, data + 100, 2, DType::f32, "left"); },
                  [](Group& g) { g.all_gather(data, data + 200, 2, DType::f32, "right"); },
                  {"all-gather 'left'", "all-gather 'right'"});
}

TEST(Mismatch, OfLongNamesThatBeginAlike) {
  const std::string stem(100, 'x');
  expect_mismatch([&](Group& g) { g.barrier(stem + "1"); }, [&](Group& g) { g.barrier(stem + "2"); }, {"xxxxxxxxxx"});
}

TEST(Mismatch, OfRoot) {
  expect_mismatch(
      [](Group& g) {
        float x = 0;
        g.broadcast(&x, 1, DType::f32, 0, "x");
      },
      [](Group& g) {
        float x = 0;
        g.broadcast(&x, 1, DType::f32, 1, "x");
      },
      {"broadcast from rank 0 'x'", "broadcast from rank 1 'x'"});
}

TEST(Mismatch, OfStartedAllreduces) {
  const auto start = [](const char* name) {
    return [name](Group& g) {
      const auto block = g.allocate(64, "memory");
      g.start_allreduce(block.parts[static_cast<size_t>(g.rank())], 4, DType::f32, Op::sum, name)->wait();
    };
  };
  expect_mismatch(start("conv1"), start("conv2"), {"'conv1'", "'conv2'"});
}

TEST(Mismatch, OfBlocks) {
  const auto gather = [](std::vector<size_t> counts) {
    return [counts](Group& g) {
      std::vector<size_t> mine = counts;
      mine.resize(static_cast<size_t>(g.size()));
      g.all_gather(data, data + 1000, mine, DType::f32, "pieces");
    };
  };
  expect_mismatch(gather({5, 7}), gather({5, 8}), {"block 1 has ", "7 ", "8 ", "'pieces'"});
  expect_mismatch(gather({5, 7}), gather({7, 5}), {"block 0 has ", "5 ", "7 "});  // as many in all
  expect_mismatch(gather({5, 7}), [](Group& g) { g.all_gather(data, data + 1000, 6, DType::f32, "pieces"); },
                  {"in uneven blocks", "6 × f32"});
}

TEST(Mismatch, OfWhatIsSentAndExpected) {
  const Outcomes outcomes = run_ranks(3, [](Group& g) {
    const auto to_next = [&](int r) { return static_cast<size_t>(r == (g.rank() + 1) % 3 ? 4 : 0); };
    std::vector<size_t> sends = {to_next(0), to_next(1), to_next(2)}, receives(3);
    receives[static_cast<size_t>(g.rank() + 2) % 3] = g.rank() == 2 ? 5 : 4;
    g.all_to_all(data, data + 1000, sends, receives, DType::f32, "letters");
  });
  for (const auto& outcome : outcomes)
    expect_error<Mismatch>(outcome, {"'letters'", "rank 1 sends 4 elements to rank 2, which expects 5"});
}

TEST(Mismatch, OfTheNumberOfCounts) {
  expect_all_well(run_ranks(2, [](Group& g) {
    const std::vector<size_t> three = {1, 2, 3}, two = {1, 1};
    EXPECT_THROW(g.all_gather(data, data + 100, three, DType::f32, "x"), InvalidArgument);
    EXPECT_THROW(g.reduce_scatter(data, data + 100, three, DType::f32, Op::sum, "x"), InvalidArgument);
    EXPECT_THROW(g.all_to_all(data, data + 100, two, three, DType::f32, "x"), InvalidArgument);
    EXPECT_THROW(g.all_to_all(data, data + 100, two, 1, DType::f32, "x"), InvalidArgument);
  }));
}

TEST(Mismatch, OfAllocation) {
  expect_mismatch([](Group& g) { g.allocate(100, "gradients"); }, [](Group& g) { g.allocate(200, "gradients"); },
                  {"allocation 'gradients' of 100", "allocation 'gradients' of 200"});
}

TEST(Mismatch, OfMessages) {
  const auto exchange = [](size_t sent, DType sent_type, const char* sent_name) {
    return run_ranks(2, [=](Group& group) {
      int64_t room[8] = {};
      group.rank() == 0 ? group.send(room, sent, sent_type, 1, sent_name)
                        : group.receive(room, 2, DType::f32, 0, "activations");
    });
  };
  EXPECT_FALSE(exchange(2, DType::f32, "activations")[1]);
  expect_error<Mismatch>(exchange(3, DType::f32, "activations")[1],
                         {"rank 1 expects 'activations' of 2 × f32 from rank 0", "sent 'activations' of 3 × f32"});
  expect_error<Mismatch>(exchange(2, DType::f16, "activations")[1], {"2 × f32", "2 × f16"});
  expect_error<Mismatch>(exchange(2, DType::f32, "gradients")[1], {"'activations'", "'gradients'"});
}

// ---- who is not there ----

TEST(Leaving, EarlyIsAPeerLostForTheOthers) {
  const Outcomes outcomes = run_ranks(3, [](Group& group) {
    if (group.rank() != 1) group.barrier("epoch 7");
  });
  for (size_t rank : {0, 2}) expect_error<PeerLost>(outcomes[rank], {"rank 1", "ended its part", "barrier 'epoch 7'"});
  EXPECT_FALSE(outcomes[1]);
}

TEST(Leaving, WithAnErrorIsToldToTheOthers) {
  const Outcomes outcomes = run_ranks(2, [](Group& group) {
    if (group.rank() == 1) fail<IoError>("no such file");
    group.barrier("epoch 7");
  });
  expect_error<PeerLost>(outcomes[0], {"rank 1 stopped after an error of its own", "barrier 'epoch 7'"});
}

TEST(Leaving, WhileAMessageIsAwaited) {
  const Outcomes outcomes = run_ranks(2, [](Group& group) {
    float x = 0;
    if (group.rank() == 0) group.receive(&x, 1, DType::f32, 1, "activations");
  });
  expect_error<PeerLost>(outcomes[0], {"rank 1", "receive 'activations'"});
}

TEST(Leaving, AfterItsPartIsNoError) {
  for (int i = 0; i < 50; i++)
    expect_all_well(run_ranks(3, [](Group& group) {
      float x = 1;
      group.allreduce(&x, 1, DType::f32, Op::sum, "last");
    }));
}

TEST(Absent, RankAtACollective) {
  std::atomic<bool> given_up{false};
  const Outcomes late = run_ranks(2,
                                  [&](Group& group) {
                                    if (group.rank() == 1) {
                                      while (!given_up) std::this_thread::yield();
                                      return;
                                    }
                                    try {
                                      group.barrier("gate");
                                    } catch (...) {
                                      given_up = true;
                                      throw;
                                    }
                                    given_up = true;
                                  },
                                  {.timeout = Seconds(0.2)});
  expect_error<Timeout>(late[0], {"rank 1", "barrier 'gate'", "0.2 s"});
}

TEST(Absent, RankAtTheStart) {
  std::exception_ptr error;
  const auto segment = Segment::create();
  try {
    Group group(segment, 0, 2, {.timeout = Seconds(0.1)});
  } catch (...) {
    error = std::current_exception();
  }
  expect_error<Timeout>(error, {"rank 1 did not come to the job", "0.1 s"});
  try {  // too late: rank 0 has given up
    Group late(segment, 1, 2, {.timeout = Seconds(20)});
  } catch (...) {
    error = std::current_exception();
  }
  expect_error<PeerLost>(error, {"rank 0 stopped after an error of its own"});
}

}  // namespace
}  // namespace trireme::tests
