// label: unit
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <stdexcept>
#include <thread>

#include <trireme/parallel/arrivals.h>

namespace trireme::tests {
namespace {

class ArrivalsTest : public testing::Test {
 protected:
  torch::Tensor weight = torch::randn({4, 3}), bias = torch::randn({4}), other = torch::randn({2, 3});
  std::vector<size_t> awaited;
  Arrivals arrivals{{weight, bias}, [this](size_t slot) { awaited.push_back(slot); }};

  bool waits_for(size_t slot) const { return std::find(awaited.begin(), awaited.end(), slot) != awaited.end(); }
};

TEST_F(ArrivalsTest, AnOperatorWaitsForTheParametersThatItUses) {
  arrivals.expect();
  torch::relu(other);
  EXPECT_TRUE(awaited.empty());
  torch::mm(other, weight.t());
  EXPECT_TRUE(waits_for(0));
  EXPECT_FALSE(waits_for(1));
  torch::linear(other, weight, bias);
  EXPECT_TRUE(waits_for(1));
}

/// The value has to be there before the operator reads it.
TEST_F(ArrivalsTest, BeforeItReads) {
  Arrivals filling({weight}, [this](size_t) { std::fill_n(weight.data_ptr<float>(), 12, 7.f); });
  filling.expect();
  EXPECT_EQ((weight * 1).sum().item<float>(), 84);
  filling.dismiss();
}

TEST_F(ArrivalsTest, ViewsListsAndWritesCount) {
  const torch::Tensor view = weight[2].narrow(0, 1, 2);  // before: no operator waits
  arrivals.expect();
  view.sum();
  EXPECT_TRUE(waits_for(0));
  awaited.clear();
  torch::cat({other, weight});
  EXPECT_TRUE(waits_for(0));
  EXPECT_FALSE(waits_for(1));
  bias.zero_();
  EXPECT_TRUE(waits_for(1));
}

TEST_F(ArrivalsTest, NobodyWaitsBeforeAndAfter) {
  weight.sum();
  arrivals.expect();
  arrivals.dismiss();
  weight.sum();
  {
    Arrivals shortlived({weight}, [](size_t) { FAIL(); });
    shortlived.expect();
  }
  weight.sum();
  EXPECT_TRUE(awaited.empty());
}

TEST_F(ArrivalsTest, AFailedWaitIsThrownByDismiss) {
  int calls = 0;
  Arrivals failing({weight}, [&](size_t) {
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
