// label: unit
// The contract of comm::Communicator for the shared-memory engine, ranks as threads.
#include "contract.h"

#include "ranks.h"

namespace trireme::tests {
namespace {

Engine shm_engine() {
  return {"shm", [](int ranks, const auto& body) { expect_all_well(run_ranks(ranks, body)); },
          [](Communicator& group, size_t bytes) {
            auto& here = dynamic_cast<comm::shm::Communicator&>(group);
            return here.allocate(bytes, "a test's memory").parts[static_cast<size_t>(here.rank())];
          }};
}

INSTANTIATE_TEST_SUITE_P(Engines, Contract,
                         testing::Combine(testing::Values(shm_engine()), testing::Values(1, 2, 3, 4, 8)), case_name);

TEST(ShmCommunicator, AllocatedMemoryIsZeroAndReachableByAll) {
  expect_all_well(run_ranks(3, [](comm::shm::Communicator& group) {
    const auto block = group.allocate(5000, "numbers");
    ASSERT_EQ(block.parts.size(), 3u);
    EXPECT_EQ(block.bytes, 5000u);
    for (const std::byte* part : block.parts)
      for (size_t i = 0; i < block.bytes; i++) ASSERT_EQ(part[i], std::byte{0});
    group.barrier("looked");
    block.parts[static_cast<size_t>(group.rank())][4999] = std::byte(group.rank() + 1);
    group.barrier("written");
    for (int r = 0; r < 3; r++) EXPECT_EQ(block.parts[static_cast<size_t>(r)][4999], std::byte(r + 1));
  }));
}

TEST(ShmCommunicator, OneRankAloneMayStartAnAllreduceOfPrivateMemory) {
  expect_all_well(run_ranks(1, [](comm::shm::Communicator& group) {
    std::vector<float> data = {1, 2, 3};
    group.start_allreduce(data.data(), data.size(), DType::f32, Op::mean, "alone")->wait();
    EXPECT_EQ(data, (std::vector<float>{1, 2, 3}));
  }));
}

TEST(ShmCommunicator, SmallStagesGiveTheSameResults) {
  expect_all_well(run_ranks(3,
                            [](comm::shm::Communicator& group) {
                              std::vector<int32_t> data(10007), all(3 * data.size()), mine(data.size());
                              for (size_t i = 0; i < data.size(); i++)
                                data[i] = static_cast<int32_t>(i) * (group.rank() + 1);
                              group.all_gather(data.data(), all.data(), data.size(), DType::i32, "all");
                              EXPECT_EQ(all[2 * data.size() + 10006], 3 * 10006);
                              group.reduce_scatter(all.data(), mine.data(), data.size(), DType::i32, Op::sum, "mine");
                              EXPECT_EQ(mine[10006], 3 * 10006 * (group.rank() + 1));
                              group.allreduce(data.data(), data.size(), DType::i32, Op::sum, "data");
                              for (size_t i = 0; i < data.size(); i++) ASSERT_EQ(data[i], static_cast<int32_t>(i) * 6);
                            },
                            {.stage_bytes = 3 * 64}));
}

TEST(ShmCommunicator, StagesThatCannotWorkAreRefused) {
  for (size_t bytes : {size_t{0}, size_t{64}, size_t{1001}})
    for (const auto& outcome : run_ranks(2, [](comm::shm::Communicator&) {}, {.stage_bytes = bytes}))
      expect_error<InvalidArgument>(outcome, {"stage"});
}

}  // namespace
}  // namespace trireme::tests
