#include "contract.h"

#include <atomic>
#include <thread>

namespace trireme::tests {

std::string case_name(const testing::TestParamInfo<Case>& info) {
  bring_started_tests();
  return fmt::format("{}_{}", std::get<0>(info.param).name, std::get<1>(info.param));
}

// ---- allreduce ----

TEST_P(Contract, AllreduceOfPrivateMemory) {
  check_allreduces([](int) { return false; });
}
TEST_P(Contract, AllreduceOfAllocatedMemory) {
  check_allreduces([](int) { return true; });
}
TEST_P(Contract, AllreduceOfMixedMemory) {
  check_allreduces([](int rank) { return rank % 2 == 1; });
}

TEST_P(Contract, AllreduceGivesTheSameBitsOnEveryRank) {
  constexpr size_t kCount = 100003;
  for (bool own : {false, true})
    run([&](Communicator& group) {
      std::vector<float> mine(kCount), all(kCount * static_cast<size_t>(group.size()));
      for (size_t i = 0; i < kCount; i++)
        mine[i] = static_cast<float>(std::sin(static_cast<double>(i + 1) * (group.rank() + 1.7)));
      float* data = mine.data();
      if (own) {
        data = reinterpret_cast<float*>(allocate(group, kCount * sizeof(float)));
        std::copy(mine.begin(), mine.end(), data);
      }
      group.allreduce(data, kCount, DType::f32, Op::mean, "sines");
      group.all_gather(data, all.data(), kCount, DType::f32, "everybody's result");
      for (size_t r = 0; r < static_cast<size_t>(group.size()); r++)
        EXPECT_EQ(std::memcmp(all.data() + r * kCount, data, kCount * sizeof(float)), 0);
      for (size_t i = 0; i < kCount; i += 997) {
        double mean = 0;
        for (int r = 0; r < group.size(); r++) mean += std::sin(static_cast<double>(i + 1) * (r + 1.7)) / group.size();
        EXPECT_NEAR(data[i], mean, 1e-6);
      }
    });
}

TEST_P(Contract, SeveralAllreducesAreOpenAtOnce) {
  run([&](Communicator& group) {
    constexpr size_t kCounts[] = {1000, 1, 30011, 0, 77};
    for (bool backwards : {false, true}) {
      std::vector<std::byte*> data;
      std::vector<std::unique_ptr<comm::Work>> works;
      for (size_t k = 0; k < std::size(kCounts); k++) {
        data.push_back(allocate(group, kCounts[k] * size_of(kTypes[k])));
        copy(data[k], encode(kTypes[k], kCounts[k], [&](size_t i) { return value(group.rank(), i + k); }));
      }
      for (size_t k = 0; k < std::size(kCounts); k++)
        works.push_back(group.start_allreduce(data[k], kCounts[k], kTypes[k], Op::sum, fmt::format("work {}", k)));
      for (size_t k = 0; k < works.size(); k++) works[backwards ? works.size() - 1 - k : k]->wait();
      for (size_t k = 0; k < works.size(); k++) {
        EXPECT_TRUE(works[k]->test());
        EXPECT_TRUE(same(kTypes[k], data[k], encode(kTypes[k], kCounts[k], [&](size_t i) {
                           return reduced(Op::sum, group.size(), i + k);
                         })));
      }
    }
  });
}

TEST_P(Contract, TestAloneCompletesAnAllreduce) {
  run([&](Communicator& group) {
    std::byte* data = allocate(group, 5000 * 4);
    copy(data, encode(DType::f32, 5000, [&](size_t i) { return value(group.rank(), i); }));
    const auto work = group.start_allreduce(data, 5000, DType::f32, Op::max, "polled");
    while (!work->test()) std::this_thread::yield();
    EXPECT_TRUE(
        same(DType::f32, data, encode(DType::f32, 5000, [&](size_t i) { return reduced(Op::max, group.size(), i); })));
  });
}

TEST_P(Contract, HundredsOfAllreducesMayBeStartedBeforeTheFirstWait) {
  run([&](Communicator& group) {
    constexpr size_t kWorks = 300;
    auto* data = reinterpret_cast<int64_t*>(allocate(group, kWorks * 8));
    std::vector<std::unique_ptr<comm::Work>> works;
    for (size_t k = 0; k < kWorks; k++) {
      data[k] = static_cast<int64_t>(k) + group.rank();
      works.push_back(group.start_allreduce(data + k, 1, DType::i64, Op::sum, "one of many"));
    }
    for (const auto& work : works) work->wait();
    const int64_t n = group.size();
    for (size_t k = 0; k < kWorks; k++) EXPECT_EQ(data[k], n * static_cast<int64_t>(k) + n * (n - 1) / 2);
  });
}

TEST_P(Contract, StartedAllreducesOfMixedSizesAndTypes) {
  run([&](Communicator& group) {
    constexpr size_t kWorks = 50;
    const auto count = [](size_t k) { return k % 7 == 3 ? 30000 + k : k * k; };
    const auto type = [](size_t k) { return kTypes[k % std::size(kTypes)]; };
    const auto op = [](size_t k) { return kOps[k % std::size(kOps)]; };
    std::vector<std::byte*> data;
    for (size_t k = 0; k < kWorks; k++) {
      data.push_back(allocate(group, count(k) * size_of(type(k))));
      copy(data[k], encode(type(k), count(k), [&](size_t i) { return value(group.rank(), i + k); }));
    }
    std::vector<std::unique_ptr<comm::Work>> works;
    for (size_t k = 0; k < kWorks; k++)
      works.push_back(group.start_allreduce(data[k], count(k), type(k), op(k), fmt::format("bucket {}", k)));
    for (const auto& work : works) work->wait();
    for (size_t k = 0; k < kWorks; k++)
      EXPECT_TRUE(same(type(k), data[k],
                       encode(type(k), count(k), [&](size_t i) { return reduced(op(k), group.size(), i + k); })))
          << "bucket " << k;
  });
}

TEST_P(Contract, AnotherCollectiveCompletesWhatWasStarted) {
  run([&](Communicator& group) {
    auto* data = reinterpret_cast<int32_t*>(allocate(group, 4));
    *data = group.rank();
    const auto work = group.start_allreduce(data, 1, DType::i32, Op::sum, "early");
    int32_t other = 1;
    group.allreduce(&other, 1, DType::i32, Op::sum, "late");
    EXPECT_EQ(other, group.size());
    work->wait();
    EXPECT_EQ(*data, group.size() * (group.size() - 1) / 2);
  });
}

// Rank 1 starts the second allreduce only after a message that rank 0 takes after the first; rank 0 has done its part
// of the first before it waits.
TEST_P(Contract, WaitingForTheFirstDoesNotWaitForTheSecond) {
  if (ranks() != 2) GTEST_SKIP() << "for two ranks";
  run([&](Communicator& group) {
    auto* data = reinterpret_cast<int32_t*>(allocate(group, 128));
    data[0] = data[16] = group.rank() + 1;
    Bytes letter(1 << 20, std::byte(group.rank()));
    std::byte word{};
    const auto first = group.start_allreduce(data, 1, DType::i32, Op::sum, "first");
    std::unique_ptr<comm::Work> second;
    if (group.rank() == 0) {
      second = group.start_allreduce(data + 16, 1, DType::i32, Op::sum, "second");
      group.receive(&word, 1, DType::u8, 1, "started");
      first->test();
      group.send(&word, 1, DType::u8, 1, "tested");
      first->wait();
      group.receive(letter.data(), letter.size(), DType::u8, 1, "letter");
    } else {
      group.send(&word, 1, DType::u8, 0, "started");
      group.receive(&word, 1, DType::u8, 0, "tested");
      first->wait();
      group.send(letter.data(), letter.size(), DType::u8, 0, "letter");
      second = group.start_allreduce(data + 16, 1, DType::i32, Op::sum, "second");
    }
    second->wait();
    EXPECT_EQ(data[0], 3);
    EXPECT_EQ(data[16], 3);
    EXPECT_EQ(letter.back(), std::byte{1});
  });
}

// ---- the other collectives ----

TEST_P(Contract, ReduceScatter) {
  run([&](Communicator& group) {
    const size_t n = static_cast<size_t>(group.size()), me = static_cast<size_t>(group.rank());
    const auto check = [&](DType type, Op op, size_t count) {
      const Bytes input = encode(type, count * n, [&](size_t i) { return value(group.rank(), i); });
      Bytes output(count * size_of(type));
      group.reduce_scatter(input.data(), output.data(), count, type, op, "blocks");
      EXPECT_TRUE(same(type, output.data(),
                       encode(type, count, [&](size_t i) { return reduced(op, group.size(), me * count + i); })))
          << name_of(op);
    };
    for_types_and_sizes([&](DType type, size_t count) { check(type, Op::sum, count); });
    for (DType type : kTypes)
      for (Op op : kOps) check(type, op, 333);
  });
}

TEST_P(Contract, AllGather) {
  run([&](Communicator& group) {
    for_types_and_sizes([&](DType type, size_t count) {
      const Bytes input = encode(type, count, [&](size_t i) { return value(group.rank(), i); });
      Bytes output(input.size() * static_cast<size_t>(group.size()));
      group.all_gather(input.data(), output.data(), count, type, "pieces");
      for (int r = 0; r < group.size(); r++)
        EXPECT_TRUE(same(type, output.data() + static_cast<size_t>(r) * input.size(),
                         encode(type, count, [&](size_t i) { return value(r, i); })));
    });
  });
}

TEST_P(Contract, BroadcastFromEachRoot) {
  run([&](Communicator& group) {
    const auto check = [&](int root, DType type, size_t count) {
      Bytes data = encode(type, count, [&](size_t i) { return value(group.rank(), i); });
      group.broadcast(data.data(), count, type, root, "word");
      EXPECT_TRUE(same(type, data.data(), encode(type, count, [&](size_t i) { return value(root, i); })))
          << "root " << root;
    };
    for (int root = 0; root < group.size(); root++) {
      check(root, DType::f64, kLarge[0]);
      for (size_t count : kSmall) check(root, DType::f32, count);
    }
    for_types_and_sizes([&](DType type, size_t count) { check(group.size() - 1, type, count); });
  });
}

TEST_P(Contract, BroadcastFromNobodyIsRefused) {
  run([&](Communicator& group) {
    float x = 0;
    EXPECT_THROW(group.broadcast(&x, 1, DType::f32, group.size(), "x"), InvalidArgument);
    EXPECT_THROW(group.broadcast(&x, 1, DType::f32, -1, "x"), InvalidArgument);
  });
}

TEST_P(Contract, AllToAll) {
  run([&](Communicator& group) {
    const size_t n = static_cast<size_t>(group.size()), me = static_cast<size_t>(group.rank());
    for_types_and_sizes([&](DType type, size_t count) {
      const Bytes input = encode(type, count * n, [&](size_t i) { return value(group.rank(), i); });
      Bytes output(input.size());
      group.all_to_all(input.data(), output.data(), count, type, "letters");
      for (int from = 0; from < group.size(); from++)
        EXPECT_TRUE(same(type, output.data() + static_cast<size_t>(from) * count * size_of(type),
                         encode(type, count, [&](size_t i) { return value(from, me * count + i); })))
            << "from " << from;
    });
  });
}

TEST_P(Contract, SendAndReceiveRoundTheRing) {
  if (ranks() == 1) GTEST_SKIP() << "nobody to send to";
  run([&](Communicator& group) {
    const int n = group.size(), to = (group.rank() + 1) % n, from = (group.rank() + n - 1) % n;
    for_types_and_sizes([&](DType type, size_t count) {
      const Bytes mine = encode(type, count, [&](size_t i) { return value(group.rank(), i); });
      Bytes theirs(mine.size());
      const auto send = [&] { group.send(mine.data(), count, type, to, "token"); };
      const auto receive = [&] { group.receive(theirs.data(), count, type, from, "token"); };
      group.rank() == 0 ? (send(), receive()) : (receive(), send());
      EXPECT_TRUE(same(type, theirs.data(), encode(type, count, [&](size_t i) { return value(from, i); })));
    });
  });
}

TEST_P(Contract, SmallMessagesNeedNoReceiverYet) {
  if (ranks() == 1) GTEST_SKIP() << "nobody to send to";
  run([&](Communicator& group) {
    const int n = group.size(), to = (group.rank() + 1) % n, from = (group.rank() + n - 1) % n;
    for (int32_t i = 0; i < 20; i++) {
      const std::vector<int32_t> mine(200, group.rank() + i);
      std::vector<int32_t> theirs(200);
      group.send(mine.data(), mine.size(), DType::i32, to, "to the right");
      group.receive(theirs.data(), theirs.size(), DType::i32, from, "to the right");
      EXPECT_EQ(theirs, std::vector<int32_t>(200, from + i));
    }
  });
}

TEST_P(Contract, MessagesOfAPairKeepTheirOrder) {
  if (ranks() == 1) GTEST_SKIP() << "nobody to send to";
  run([&](Communicator& group) {
    for (int32_t i = 0; i < 500; i++) {
      int32_t got = i;
      if (group.rank() == 0)
        for (int to = 1; to < group.size(); to++) group.send(&i, 1, DType::i32, to, "count");
      else
        group.receive(&got, 1, DType::i32, 0, "count");
      ASSERT_EQ(got, i);
    }
  });
}

TEST_P(Contract, SendToItselfIsRefused) {
  run([&](Communicator& group) {
    float x = 0;
    EXPECT_THROW(group.send(&x, 1, DType::f32, group.rank(), "x"), InvalidArgument);
    EXPECT_THROW(group.receive(&x, 1, DType::f32, group.rank(), "x"), InvalidArgument);
    EXPECT_THROW(group.send(&x, 1, DType::f32, group.size(), "x"), InvalidArgument);
  });
}

// Nobody passes a barrier before everybody has come to it.
TEST_P(Contract, BarrierHoldsEverybody) {
  if (!std::get<0>(GetParam()).threads) GTEST_SKIP() << "processes share no counter";
  std::atomic<int> come{0};
  run([&](Communicator& group) {
    for (int round = 1; round <= 100; round++) {
      come++;
      group.barrier("gate");
      EXPECT_GE(come.load(), round * group.size());
      group.barrier("next");
    }
  });
}

TEST_P(Contract, AnythingMayFollowAnything) {
  run([&](Communicator& group) {
    const int n = group.size();
    auto* shared = reinterpret_cast<float*>(allocate(group, 4000));
    for (int round = 0; round < 60; round++) {
      float x = static_cast<float>(group.rank() + round);
      group.broadcast(&x, 1, DType::f32, round % n, "x");
      EXPECT_EQ(x, static_cast<float>(round % n + round));
      for (int i = 0; i < 1000; i++) shared[i] = static_cast<float>(i + group.rank());
      group.allreduce(shared, 1000, DType::f32, Op::max, "shared");
      EXPECT_EQ(shared[999], static_cast<float>(999 + n - 1));
      std::vector<int64_t> all(static_cast<size_t>(n));
      const int64_t mine = group.rank() * round;
      group.all_gather(&mine, all.data(), 1, DType::i64, "mine");
      EXPECT_EQ(all.back(), static_cast<int64_t>(n - 1) * round);
      int32_t sum = 1;
      group.allreduce(&sum, 1, DType::i32, Op::sum, "sum");
      EXPECT_EQ(sum, n);
    }
  });
}

}  // namespace trireme::tests
