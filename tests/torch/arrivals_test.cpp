// label: unit
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <algorithm>
#include <stdexcept>
#include <thread>

#include <trireme/parallel/arrivals.h>

namespace trireme::tests {
namespace {

constexpr size_t kWeight = 12 * sizeof(float), kAll = kWeight + 4 * sizeof(float);  // bytes

class ArrivalsTest : public testing::Test {
 protected:
  torch::Tensor flat = torch::randn({16}), other = torch::randn({2, 3});
  std::byte* begin = static_cast<std::byte*>(flat.data_ptr());
  torch::Tensor weight = torch::from_blob(begin, {4, 3}), bias = torch::from_blob(begin + kWeight, {4});
  std::vector<space::Range> awaited;
  Arrivals arrivals{begin, kAll, [this](std::span<const space::Range> parts) {
                      awaited.insert(awaited.end(), parts.begin(), parts.end());
                    }};

  bool waits_for(space::Range part) const { return std::find(awaited.begin(), awaited.end(), part) != awaited.end(); }
  bool waits_only_for(space::Range part) const {
    return !awaited.empty() && std::count(awaited.begin(), awaited.end(), part) == std::ssize(awaited);
  }
  bool touches(space::Range part) const {
    return std::any_of(awaited.begin(), awaited.end(),
                       [&](space::Range other) { return !intersect(part, other).empty(); });
  }
  static constexpr space::Range of_weight{0, kWeight}, of_bias{kWeight, kAll};
};

TEST_F(ArrivalsTest, AnOperatorWaitsForTheParametersThatItUses) {
  arrivals.expect();
  torch::relu(other);
  EXPECT_TRUE(awaited.empty());
  torch::mm(other, weight.t());
  EXPECT_TRUE(waits_for(of_weight));
  EXPECT_FALSE(touches(of_bias));
  torch::linear(other, weight, bias);
  EXPECT_TRUE(waits_for(of_bias));
}

/// The value has to be there before the operator reads it.
TEST_F(ArrivalsTest, BeforeItReads) {
  Arrivals filling(begin, kAll,
                   [this](std::span<const space::Range>) { std::fill_n(weight.data_ptr<float>(), 12, 7.f); });
  filling.expect();
  EXPECT_EQ((weight * 1).sum().item<float>(), 84);
  filling.dismiss();
}

TEST_F(ArrivalsTest, ListsAndWritesCount) {
  arrivals.expect();
  torch::cat({other, weight});
  EXPECT_TRUE(waits_for(of_weight));
  EXPECT_FALSE(touches(of_bias));
  bias.zero_();
  EXPECT_TRUE(waits_for(of_bias));
}

TEST_F(ArrivalsTest, OfAViewAsMuchAsItShows) {
  const torch::Tensor view = weight[2].narrow(0, 1, 2), column = weight.select(1, 2),
                      nothing = weight.slice(0, 1, 1);  // before: no operator waits
  arrivals.expect();
  view.sum();
  EXPECT_TRUE(waits_only_for({7 * sizeof(float), 9 * sizeof(float)}));
  awaited.clear();
  column.sum();
  EXPECT_TRUE(waits_only_for({2 * sizeof(float), kWeight}));
  awaited.clear();
  nothing.sum();
  EXPECT_TRUE(awaited.empty());
}

TEST_F(ArrivalsTest, NobodyWaitsBeforeAndAfter) {
  weight.sum();
  arrivals.expect();
  arrivals.dismiss();
  weight.sum();
  {
    Arrivals shortlived(begin, kAll, [](std::span<const space::Range>) { FAIL(); });
    shortlived.expect();
  }
  weight.sum();
  EXPECT_TRUE(awaited.empty());
}

TEST_F(ArrivalsTest, AFailedWaitIsThrownByDismiss) {
  int calls = 0;
  Arrivals failing(begin, kAll, [&](std::span<const space::Range>) {
    calls++;
    throw std::runtime_error("rank 1 died");
  });
  failing.expect();
  weight.sum();
  weight.sum();
  EXPECT_EQ(calls, 1);
  EXPECT_THROW(failing.dismiss(), std::runtime_error);
  failing.dismiss();
}

}  // namespace
}  // namespace trireme::tests
