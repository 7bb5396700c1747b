// label: unit
// Batches against the data set they come from.
#include <gtest/gtest.h>

#include <trireme/trireme.h>

#include "ranks.h"

namespace trireme::data {
namespace {

TEST(Loader, EverySampleExactlyOnceOverRanksAndMicroBatches) {
  for (int accumulate : {1, 3}) {
    std::mutex mutex;
    std::multiset<std::pair<size_t, double>> seen;  // step, sum of pixels: a sample's signature
    std::map<size_t, double> weights;
    std::multiset<double> wanted;
    test::run_ranks(3, [&](World& world) {
      const auto sets = open(world.local(), "synthetic:100");
      const Loader loader(sets.train, world.rank(), 3,
                          {.batch = 12, .accumulate = accumulate, .dtype = torch::kFloat64});
      size_t batches = 0;
      auto epoch = loader.epoch(5);
      for (auto& batch : epoch) {
        const std::lock_guard lock(mutex);
        batches++;
        weights[batch.step] += batch.weight;
        for (size_t i = 0; i < batch.samples(); i++)
          seen.emplace(batch.step, batch.x[static_cast<int64_t>(i)].mul(255).round().sum().item<double>());
      }
      EXPECT_EQ(batches, 9u * static_cast<size_t>(accumulate));  // the same on every rank
      if (!world.first()) return;
      for (size_t i = 0; i < 100; i++) {
        double sum = 0;
        for (size_t p = 0; p < 784; p++)
          sum += static_cast<double>(std::to_integer<int>(sets.train.inputs[i * 784 + p]));
        wanted.insert(sum);
      }
    });
    std::multiset<double> got;
    for (const auto& [step, sum] : seen) got.insert(sum);
    EXPECT_EQ(got, wanted);
    for (const auto& [step, weight] : weights) EXPECT_NEAR(weight, 1, 1e-12) << step;
  }
}

TEST(Loader, BreakingOffInTheMiddleEndsTheThread) {
  test::run_ranks(1, [](World& world) {
    const auto sets = open(world.local(), "synthetic:1000");
    const Loader loader(sets.train, 0, 1, {.batch = 1, .ahead = 4});
    for (int i = 0; i < 20; i++) {
      auto epoch = loader.epoch(i);
      Batch batch;
      ASSERT_TRUE(epoch.next(batch));
    }
  });
}

TEST(Loader, RefusesImpossibleCuts) {
  test::run_ranks(1, [](World& world) {
    const auto sets = open(world.local(), "synthetic:10");
    EXPECT_THROW(Loader(sets.train, 0, 4, {.batch = 2}), InvalidArgument);
    EXPECT_THROW(Loader(sets.train, 0, 11, {.batch = 64}), InvalidArgument);
    EXPECT_THROW(Loader(sets.train, 0, 1, {.batch = 0}), InvalidArgument);
    EXPECT_THROW(Loader(sets.train, 0, 2, {.batch = 4, .accumulate = 3}), InvalidArgument);
  });
}

}  // namespace
}  // namespace trireme::data
