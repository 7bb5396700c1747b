// label: unit
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <cmath>
#include <cstring>
#include <initializer_list>
#include <vector>

#include <trireme/parallel/arrivals.h>
#include <trireme/parallel/large_linear.h>

namespace trireme::tests {
namespace {

constexpr int64_t kWidth = 1024, kOutputs = 1030;  // just large enough; the last block of rows is a small one

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
  const std::vector<torch::Tensor> parameters = {torch::randn({kOutputs, kWidth}), torch::randn({kOutputs})};
  const WeightsFirst scope{true};
};

TEST_F(LargeLinearTest, GivesWhatTorchGives) {
  torch::nn::Linear torchs_layer(kWidth, kOutputs);
  LargeLinear our_layer(kWidth, kOutputs);
  for (torch::nn::Module* layer : std::initializer_list<torch::nn::Module*>{torchs_layer.get(), our_layer.get()})
    layer->to(torch::kFloat64);
  std::vector<torch::Tensor> doubles;
  for (const torch::Tensor& parameter : parameters) doubles.push_back(parameter.to(torch::kFloat64));
  const Pass torchs = run(torchs_layer, data.to(torch::kFloat64), doubles),
             ours = run(our_layer, data.to(torch::kFloat64), doubles);
  const auto close = [](const torch::Tensor& a, const torch::Tensor& b) { return torch::allclose(a, b, 1e-10, 1e-10); };
  EXPECT_TRUE(close(ours.output, torchs.output));
  EXPECT_TRUE(close(ours.input, torchs.input));
  EXPECT_TRUE(close(ours.weight, torchs.weight));
  EXPECT_TRUE(close(ours.bias, torchs.bias));
}

/// Parameters that come in only when somebody waits for them, a part at a time.
TEST_F(LargeLinearTest, WaitsForRowsWhenItUsesThem) {
  LargeLinear layer(kWidth, kOutputs);
  const auto weight_bytes = static_cast<size_t>(kOutputs * kWidth) * sizeof(float),
             all = weight_bytes + kOutputs * sizeof(float);
  const torch::Tensor there = torch::cat({parameters[0].flatten(), parameters[1]}), here = torch::full_like(there, NAN);
  auto* const flat = static_cast<std::byte*>(here.data_ptr());
  layer->weight.set_data(torch::from_blob(flat, {kOutputs, kWidth}));
  layer->bias.set_data(torch::from_blob(flat + weight_bytes, {kOutputs}));
  std::vector<space::Range> awaited;
  Arrivals arrivals(flat, all, [&](std::span<const space::Range> parts) {
    for (const space::Range part : parts) {
      std::memcpy(flat + part.begin, static_cast<const std::byte*>(there.data_ptr()) + part.begin, part.size());
      awaited.push_back(part);
    }
  });
  arrivals.expect();
  const torch::Tensor output = layer->forward(data.clone().requires_grad_());
  arrivals.dismiss();
  EXPECT_TRUE(torch::allclose(output, torch::linear(data, parameters[0], parameters[1]), 1e-4, 1e-4));
  constexpr size_t kBytes = LargeLinearImpl::kBlock * sizeof(float);
  size_t known = 0;  // in their order, none sooner than those before, the bias last
  for (const space::Range part : awaited) {
    EXPECT_LE(part.size(), kBytes);
    EXPECT_LE(part.begin, known);
    known = std::max(known, part.end);
  }
  EXPECT_EQ(known, all);
}

TEST_F(LargeLinearTest, NoticesAWeightThatWasChangedBeforeBackward) {
  LargeLinear layer(kWidth, kOutputs);
  const torch::Tensor output = layer->forward(data.clone().requires_grad_());
  {
    const torch::NoGradGuard no_grad;
    layer->weight.mul_(2);
  }
  EXPECT_THROW(output.sum().backward(), c10::Error);
}

TEST_F(LargeLinearTest, RefusesSecondDerivatives) {
  LargeLinear layer(kWidth, kOutputs);
  const torch::Tensor leaf = data.clone().requires_grad_();
  EXPECT_THROW(torch::autograd::grad({layer->forward(leaf).square().sum()}, {leaf}, {}, true, true), c10::Error);
}

/// So the input's is computed with whatever the weight is by then.
TEST_F(LargeLinearTest, HandsTheWeightGradientOverBeforeItComputesTheInputs) {
  EXPECT_FALSE(run(LargeLinear(kWidth, kOutputs), data, parameters, true).input.any().item<bool>());
  EXPECT_TRUE(run(torch::nn::Linear(kWidth, kOutputs), data, parameters, true).input.any().item<bool>());
}

TEST_F(LargeLinearTest, OnlyWhereItIsAskedTo) {
  const WeightsFirst off(false);
  EXPECT_TRUE(run(LargeLinear(kWidth, kOutputs), data, parameters, true).input.any().item<bool>());
}

TEST_F(LargeLinearTest, ComputesOnlyTheGradientsThatAreWanted) {
  LargeLinear layer(kWidth, kOutputs);
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
