// label: unit
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <string>
#include <vector>

#include <trireme/parallel/large_linear.h>

namespace trireme::tests {
namespace {

constexpr int64_t kWidth = 1024;  // squared: just large enough

struct Pass {
  torch::Tensor output, input, weight, bias;  // all but the first: gradients
  std::vector<std::string> order;             // in which they came
};

template <class Layer>
Pass run(Layer layer, const torch::Tensor& data, const std::vector<torch::Tensor>& parameters) {
  {
    const torch::NoGradGuard no_grad;
    layer->weight.copy_(parameters[0]);
    layer->bias.copy_(parameters[1]);
  }
  Pass result;
  const torch::Tensor leaf = data.clone().requires_grad_(), input = leaf * 2;
  const auto note = [&](const char* name) { return [&result, name](const torch::Tensor& gradient) { return result.order.push_back(name), gradient; }; };
  input.register_hook(note("input"));
  layer->weight.register_hook(note("weight"));
  layer->bias.register_hook(note("bias"));
  result.output = layer->forward(input);
  (result.output * torch::sin(result.output)).sum().backward();
  result.input = leaf.grad();
  result.weight = layer->weight.grad();
  result.bias = layer->bias.grad();
  return result;
}

TEST(LargeLinear, GivesTheBitsOfTorchAndItsWeightGradientFirst) {
  const WeightsFirst scope(true);
  torch::manual_seed(5);
  const auto data = torch::randn({32, kWidth});
  const std::vector<torch::Tensor> parameters = {torch::randn({kWidth, kWidth}), torch::randn({kWidth})};
  const Pass torchs = run(torch::nn::Linear(kWidth, kWidth), data, parameters), ours = run(LargeLinear(kWidth, kWidth), data, parameters);
  EXPECT_TRUE(torch::equal(ours.output, torchs.output));
  EXPECT_TRUE(torch::equal(ours.input, torchs.input));
  EXPECT_TRUE(torch::equal(ours.weight, torchs.weight));
  EXPECT_TRUE(torch::equal(ours.bias, torchs.bias));
  ASSERT_EQ(ours.order.size(), 3u);
  EXPECT_EQ(ours.order.back(), "input");
}

TEST(LargeLinear, ComputesOnlyTheGradientsThatAreWanted) {
  const WeightsFirst scope(true);
  LargeLinear layer(kWidth, kWidth);
  const auto data = torch::randn({4, kWidth});
  layer->forward(data).sum().backward();  // a first layer: its input is data
  EXPECT_TRUE(layer->weight.grad().defined());

  layer->weight.mutable_grad().reset();
  layer->weight.requires_grad_(false);  // frozen
  const auto leaf = data.clone().requires_grad_();
  layer->forward(leaf).sum().backward();
  EXPECT_FALSE(layer->weight.grad().defined());
  EXPECT_TRUE(torch::allclose(leaf.grad(), layer->weight.sum(0).expand({4, kWidth}), 1e-4, 1e-4));

  const torch::NoGradGuard no_grad;
  EXPECT_FALSE(layer->forward(leaf).requires_grad());
}

}  // namespace
}  // namespace trireme::tests
