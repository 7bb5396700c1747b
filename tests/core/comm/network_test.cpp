// label: unit
// The contract of comm::Communicator for groups on a network, ranks as threads, algorithms picked by size.
#include <trireme/comm/network/divide.h>
#include <trireme/comm/network/engine.h>

#include "network_engine.h"

namespace trireme::tests {
namespace {

using comm::network::Options;

INSTANTIATE_TEST_SUITE_P(BySize, Contract,
                         testing::Combine(testing::Values(network_engine("network", Options{}.direct_bytes)),
                                          testing::Values(1, 2, 3, 4, 8)),
                         case_name);

TEST(NetworkCommunicator, GathersInPlace) {
  for (size_t count : {size_t{10}, size_t{2000}, size_t{100000}})
    expect_all_well(run_network(3, [&](Communicator& group) {
      std::vector<int32_t> all(3 * count);
      std::fill_n(all.begin() + static_cast<ptrdiff_t>(count) * group.rank(), count, group.rank() + 1);
      group.all_gather(all.data() + count * static_cast<size_t>(group.rank()), all.data(), count, DType::i32, "all");
      for (size_t i = 0; i < all.size(); i++) ASSERT_EQ(all[i], static_cast<int32_t>(i / count) + 1);
    }));
}

TEST(NetworkCommunicator, FlagsAndSumsTravelWithTheData) {
  for (size_t count : {size_t{0}, size_t{10}, size_t{100000}})
    expect_all_well(run_network(3, [&](comm::network::Communicator& group) {
      std::vector<float> data(count, static_cast<float>(group.rank() + 1));
      std::vector<uint8_t> flags(300);
      flags[static_cast<size_t>(group.rank())] = 1;
      flags[299] = static_cast<uint8_t>(group.rank() * 100);
      std::vector<double> sums = {0.1 * (group.rank() + 1), -1};
      group.start_allreduce(data.data(), count, DType::f32, Op::sum, {.flags = flags, .sums = sums}, "with flags")
          ->wait();
      EXPECT_EQ(data, std::vector<float>(count, 6));
      std::vector<uint8_t> expected(300);
      expected[0] = expected[1] = expected[2] = 1;
      expected[299] = 200;
      EXPECT_EQ(flags, expected);
      EXPECT_EQ(sums, (std::vector<double>{0.0 + 0.1 * 1 + 0.1 * 2 + 0.1 * 3,
                                           -3}));  // in the order of ranks: the same bits on all
    }));
  expect_all_well(run_network(2, [](comm::network::Communicator& group) {
    std::vector<uint8_t> flags(group.kMostFlags + 1);
    float x = 0;
    EXPECT_THROW(group.start_allreduce(&x, 1, DType::f32, Op::sum, {.flags = flags}, "too many"), InvalidArgument);
    std::vector<double> sums(group.kMostSums + 1);
    EXPECT_THROW(group.start_allreduce(&x, 1, DType::f32, Op::sum, {.sums = sums}, "too many"), InvalidArgument);
  }));
}

/// Two ranks, who send each other all they have: what one sends the other receives, the data once and a little more.
TEST(NetworkCommunicator, CountsWhatItCarries) {
  constexpr size_t kCount = 100'000, kBytes = kCount * sizeof(float), kTimes = 3;
  metrics::Registry registry;
  expect_all_well(run_network(2,
                              [&](comm::network::Communicator& group) {
                                std::vector<float> data(kCount, 1);
                                for (size_t i = 0; i < kTimes; i++)
                                  group.allreduce(data.data(), kCount, DType::f32, Op::sum, "counted");
                                EXPECT_EQ(group.carried_bytes(), kTimes * kBytes);
                                EXPECT_GT(group.busy_seconds(), 0);
                              },
                              {.direct_bytes = kBytes, .registry = &registry, .label = "lane"}));
  const metrics::Snapshot both = registry.snapshot();
  EXPECT_EQ(both.total("collective_bytes").value, 2 * kTimes * kBytes);
  EXPECT_EQ(both.total("sent_bytes").value, both.total("received_bytes").value);
  EXPECT_GE(both.total("sent_bytes").value, 2 * kTimes * kBytes);
  EXPECT_LE(both.total("sent_bytes").value, 1.1 * 2 * kTimes * kBytes);
  for (const metrics::Entry& entry : both.entries()) EXPECT_EQ(entry.label, "lane");
}

/// A reduce-scatter and an all-gather each move what is not a rank's own, once: half of an allreduce.
TEST(NetworkCommunicator, BlocksTravelOnce) {
  constexpr size_t kBlock = 200'000, kBytes = kBlock * sizeof(float);
  for (size_t ranks : {size_t{2}, size_t{3}, size_t{4}})
    for (const bool scatter : {true, false}) {
      metrics::Registry registry;
      expect_all_well(
          run_network(static_cast<int>(ranks),
                      [&](comm::network::Communicator& group) {
                        std::vector<float> all(ranks * kBlock, 1), own(kBlock, 1);
                        if (scatter)
                          group.reduce_scatter(all.data(), own.data(), kBlock, DType::f32, Op::sum, "parts");
                        else
                          group.all_gather(own.data(), all.data(), kBlock, DType::f32, "parts");
                        EXPECT_EQ(scatter ? own.back() : all.back(), scatter ? static_cast<float>(ranks) : 1);
                      },
                      {.registry = &registry, .label = "lane"}));
      const double wanted = static_cast<double>(ranks * (ranks - 1) * kBytes);  // of all ranks
      const auto sent = static_cast<double>(registry.snapshot().total("sent_bytes").value);
      EXPECT_GE(sent, wanted) << ranks;
      EXPECT_LE(sent, 1.1 * wanted) << ranks << (scatter ? " scatter" : " gather");
    }
}

TEST(Divide, EveryType) {
  for (DType type : {DType::f32, DType::f64, DType::f16, DType::bf16, DType::i32, DType::i64})
    for (int by : {1, 2, 7, 300}) {
      Bytes data = encode(type, 2500, [](size_t i) { return static_cast<double>(i % 200) - 100; });
      comm::network::divide(type, data.data(), 2500, by);
      EXPECT_TRUE(same(type, data.data(),
                       encode(type, 2500, [&](size_t i) { return (static_cast<double>(i % 200) - 100) / by; })))
          << by;
    }
  uint8_t bytes[] = {0, 7, 255};
  comm::network::divide(DType::u8, bytes, 3, 2);
  EXPECT_EQ(bytes[2], 127);
  comm::network::divide(DType::u8, bytes, 3, 256);
  EXPECT_EQ(bytes[2], 0);
}

// ---- engines by name ----

TEST(Engines, ByName) {
  using namespace comm::network;
  const auto message = [](const std::string& name) {
    try {
      engine_named(name);
    } catch (const InvalidArgument& error) {
      return std::string(error.what());
    }
    return std::string();
  };
  EXPECT_EQ(message("nccl"), "this libtorch has no NCCL; there is no other");
  add_engine({.name = "gloo", .description = "first", .connect = {}});
  add_engine({.name = "mpi", .description = "Open MPI", .connect = {}});
  add_engine({.name = "gloo", .description = "second", .connect = {}});
  EXPECT_EQ(engine_names(), (std::vector<std::string>{"gloo", "mpi"}));
  EXPECT_EQ(engine_named("gloo").description, "second");
  EXPECT_EQ(message("nccl"), "this libtorch has no NCCL; use gloo or mpi");
  EXPECT_EQ(message("glo"), "there is no engine 'glo' (did you mean 'gloo'?); use gloo or mpi");
}

}  // namespace
}  // namespace trireme::tests
