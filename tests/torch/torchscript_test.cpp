// label: unit
// Every kind of layer that can be exported, with settings that are not the default: what TorchScript computes is what
// the layer computes, bit by bit, also after it was written and read.
#include <gtest/gtest.h>
#include <torch/script.h>
#include <torch/torch.h>

#include <sstream>

#include <trireme/base/error.h>
#include <trireme/models/torchscript.h>

namespace trireme {
namespace {

namespace nn = torch::nn;

torch::jit::Module written_and_read(const torch::jit::Module& module) {
  std::stringstream bytes;
  module.save(bytes);
  return torch::jit::load(bytes);
}

void expect_same(nn::Sequential net, const torch::Tensor& x, const std::string& what) {
  for (auto& buffer : net->buffers())
    if (buffer.is_floating_point()) buffer.uniform_(0.5, 2);
  net->eval();
  const torch::NoGradGuard no_grad;
  torch::jit::Module module = written_and_read(models::to_torchscript(net));
  const torch::Tensor expected = net->forward(x), got = module.forward({x}).toTensor();
  EXPECT_TRUE(torch::equal(got, expected)) << what << ": " << (got - expected).abs().max().item<double>();
  EXPECT_EQ(module.parameters().size(), net->parameters().size()) << what;
}

TEST(Torchscript, EveryLayer) {
  torch::manual_seed(1);
  const torch::Tensor images = torch::randn({5, 4, 13, 11}), rows = torch::randn({5, 12});
  expect_same(nn::Sequential(nn::Linear(nn::LinearOptions(12, 3).bias(false))), rows, "linear");
  expect_same(
      nn::Sequential(nn::Conv2d(
          nn::Conv2dOptions(4, 6, {3, 2}).stride({2, 1}).padding({1, 0}).dilation({1, 2}).groups(2).bias(false))),
      images, "conv");
  expect_same(nn::Sequential(nn::BatchNorm2d(nn::BatchNorm2dOptions(4).eps(0.1).momentum(0.3))), images, "batch norm");
  expect_same(nn::Sequential(nn::BatchNorm2d(nn::BatchNorm2dOptions(4).affine(false))), images, "plain batch norm");
  expect_same(nn::Sequential(nn::BatchNorm1d(12)), rows, "batch norm of rows");
  expect_same(nn::Sequential(nn::MaxPool2d(
                  nn::MaxPool2dOptions({3, 2}).stride({2, 1}).padding({1, 0}).dilation({1, 2}).ceil_mode(true))),
              images, "max");
  expect_same(nn::Sequential(nn::AvgPool2d(
                  nn::AvgPool2dOptions({3, 3}).stride({2, 1}).padding(1).ceil_mode(true).count_include_pad(false))),
              images, "mean");
  expect_same(nn::Sequential(nn::AvgPool2d(nn::AvgPool2dOptions(2).divisor_override(3))), images,
              "mean with a divisor");
  expect_same(nn::Sequential(nn::Flatten(nn::FlattenOptions().start_dim(2).end_dim(3))), images, "flatten");
  expect_same(nn::Sequential(nn::Dropout(0.5), nn::Dropout2d(0.25), nn::ReLU(), nn::Tanh(), nn::Sigmoid()), images,
              "rest");
}

TEST(Torchscript, ParametersKeepTheirNames) {
  std::vector<std::string> names;
  const nn::Sequential net(nn::Flatten(), nn::Linear(12, 7), nn::ReLU(), nn::Linear(7, 2));
  for (const auto& item : models::to_torchscript(net).named_parameters()) names.push_back(item.name);
  EXPECT_EQ(names, (std::vector<std::string>{"1.weight", "1.bias", "3.weight", "3.bias"}));
}

TEST(Torchscript, ParametersAreCopies) {
  nn::Sequential net(nn::Linear(3, 1));
  torch::jit::Module module = models::to_torchscript(net);
  const torch::Tensor x = torch::ones({1, 3}), before = module.forward({x}).toTensor();
  const torch::NoGradGuard no_grad;
  for (auto& parameter : net->parameters()) parameter.add_(1);
  EXPECT_TRUE(torch::equal(module.forward({x}).toTensor(), before));
}

TEST(Torchscript, WhatIsNotKnownIsNamed) {
  const auto refused = [](const nn::Sequential& net, const std::string& part) {
    try {
      models::to_torchscript(net);
      ADD_FAILURE() << part;
    } catch (const InvalidArgument& error) {
      EXPECT_NE(std::string(error.what()).find(part), std::string::npos) << error.what();
    }
  };
  refused(nn::Sequential(nn::Hardtanh()), "Hardtanh");
  refused(nn::Sequential(nn::Conv2d(nn::Conv2dOptions(1, 1, 3).padding(torch::kSame))), "padding");
}

}  // namespace
}  // namespace trireme
