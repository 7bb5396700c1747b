// label: unit
// The algorithms of a network group: the contract with everything in a ring and with everything direct, and that the
// two agree.
#include <mutex>

#include "network_engine.h"

namespace trireme::tests {
namespace {

constexpr size_t kHuge = size_t{1} << 40;

INSTANTIATE_TEST_SUITE_P(Ring, Contract,
                         testing::Combine(testing::Values(network_engine("ring", 0)), testing::Values(2, 5)),
                         case_name);
INSTANTIATE_TEST_SUITE_P(Direct, Contract,
                         testing::Combine(testing::Values(network_engine("direct", kHuge)), testing::Values(3)),
                         case_name);

/// Sizes around which chunks become empty, segments begin, and data no longer fits into an opening.
TEST(NetworkCommunicator, RingAndDirectAgree) {
  constexpr size_t kCounts[] = {1, 15, 16, 17, 47, 49, 1000, 4000, 65536 * 3 - 1, 65536 * 3 + 1, 300007};
  for (Op op : kOps)
    for (size_t count : kCounts) {
      std::vector<std::vector<float>> results;
      std::mutex mutex;
      for (size_t direct_bytes : {size_t{0}, kHuge})
        expect_all_well(run_network(3,
                                    [&](Communicator& group) {
                                      std::vector<float> data(count);
                                      for (size_t i = 0; i < count; i++)
                                        data[i] = static_cast<float>(value(group.rank(), i));
                                      group.allreduce(data.data(), count, DType::f32, op, "w");
                                      const std::lock_guard lock(mutex);
                                      results.push_back(data);
                                    },
                                    {.direct_bytes = direct_bytes}));
      ASSERT_EQ(results.size(), 6u);
      for (const auto& result : results) EXPECT_EQ(result, results[0]) << name_of(op) << " of " << count;
    }
}

TEST(NetworkCommunicator, RingsOfSeveralSegmentsPassOnEverything) {
  expect_all_well(run_network(3, [](Communicator& group) {
    constexpr size_t kCount = 1000003;
    std::vector<int32_t> data(kCount), all(3 * kCount), mine(kCount);
    for (size_t i = 0; i < kCount; i++) data[i] = static_cast<int32_t>(i) * (group.rank() + 1);
    group.all_gather(data.data(), all.data(), kCount, DType::i32, "all");
    for (size_t r = 0; r < 3; r++)
      ASSERT_EQ(all[r * kCount + kCount - 1], static_cast<int32_t>((kCount - 1) * (r + 1)));
    group.reduce_scatter(all.data(), mine.data(), kCount, DType::i32, Op::sum, "mine");
    ASSERT_EQ(mine[70001], 3 * 70001 * (group.rank() + 1));
    group.allreduce(data.data(), kCount, DType::i32, Op::sum, "data");
    for (size_t i = 0; i < kCount; i++) ASSERT_EQ(data[i], static_cast<int32_t>(i) * 6);
    if (group.rank() != 2) std::fill(data.begin(), data.end(), 0);
    group.broadcast(data.data(), kCount, DType::i32, 2, "data");
    for (size_t i = 0; i < kCount; i++) ASSERT_EQ(data[i], static_cast<int32_t>(i) * 6);
  }));
}

}  // namespace
}  // namespace trireme::tests
