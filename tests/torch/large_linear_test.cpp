// label: unit
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <cstring>
#include <vector>

#include <trireme/parallel/large_linear.h>

namespace trireme::tests {
namespace {

constexpr int64_t kWidth = 1024;  // squared: just large enough

struct Pass {
  torch::Tensor output, input, weight, bias;  // all but the first: gradients
};

/// `spoil`: the weight is zeroed as soon as its gradient is handed over.
template <class Layer>
Pass run(Layer layer, const torch::Tensor& data, const std::vector<torch::Tensor>& parameters, bool spoil = false) {
  {
    const torch::NoGradGuard no_grad;
    layer->weight.copy_(parameters[0]);
    layer->bias.copy_(parameters[1]);
  }
  const torch::Tensor leaf = data.clone().requires_grad_();
  if (spoil)
    layer->weight.register_hook([&](const torch::Tensor& gradient) {
      std::memset(layer->weight.data_ptr(), 0, layer->weight.nbytes());  // as a peer's update would: past autograd
      return gradient;
    });
  const torch::Tensor output = layer->forward(leaf * 2);
  (output * torch::sin(output)).sum().backward();
  return {output, leaf.grad(), layer->weight.grad(), layer->bias.grad()};
}

class LargeLinearTest : public testing::Test {
 protected:
  const torch::Tensor data = torch::randn({32, kWidth});
  const std::vector<torch::Tensor> parameters = {torch::randn({kWidth, kWidth}), torch::randn({kWidth})};
  const WeightsFirst scope{true};
};

TEST_F(LargeLinearTest, GivesTheBitsOfTorch) {
  const Pass torchs = run(torch::nn::Linear(kWidth, kWidth), data, parameters), ours = run(LargeLinear(kWidth, kWidth), data, parameters);
  EXPECT_TRUE(torch::equal(ours.output, torchs.output));
  EXPECT_TRUE(torch::equal(ours.input, torchs.input));
  EXPECT_TRUE(torch::equal(ours.weight, torchs.weight));
  EXPECT_TRUE(torch::equal(ours.bias, torchs.bias));
}

/// So the input's is computed with whatever the weight is by then.
TEST_F(LargeLinearTest, HandsTheWeightGradientOverBeforeItComputesTheInputs) {
  EXPECT_FALSE(run(LargeLinear(kWidth, kWidth), data, parameters, true).input.any().item<bool>());
  EXPECT_TRUE(run(torch::nn::Linear(kWidth, kWidth), data, parameters, true).input.any().item<bool>());
}

TEST_F(LargeLinearTest, OnlyWhereItIsAskedTo) {
  const WeightsFirst off(false);
  EXPECT_TRUE(run(LargeLinear(kWidth, kWidth), data, parameters, true).input.any().item<bool>());
}

TEST_F(LargeLinearTest, ComputesOnlyTheGradientsThatAreWanted) {
  LargeLinear layer(kWidth, kWidth);
  layer->forward(data).sum().backward();  // a first layer: its input is data
  EXPECT_TRUE(layer->weight.grad().defined());

  layer->weight.mutable_grad().reset();
  layer->weight.requires_grad_(false);  // frozen
  const auto leaf = data.clone().requires_grad_();
  layer->forward(leaf).sum().backward();
  EXPECT_FALSE(layer->weight.grad().defined());
  EXPECT_TRUE(torch::allclose(leaf.grad(), layer->weight.sum(0).expand({32, kWidth}), 1e-4, 1e-4));

  const torch::NoGradGuard no_grad;
  EXPECT_FALSE(layer->forward(leaf).requires_grad());
}

}  // namespace
}  // namespace trireme::tests
