// label: unit
// A backward pass in two parts: the first gives gradients of inputs and leaves those of weights, the second gives
// these, and together they are the ordinary one.
#include <gtest/gtest.h>

#include <trireme/parallel/split_backward.h>
#include <trireme/trireme.h>

#include "tensor_ranks.h"

namespace trireme {
namespace {

using test::distance;
using test::Tensors;
using torch::Tensor;
namespace nn = torch::nn;
using Forward = std::function<Tensor(const Tensor&)>;

Tensors gradients_of(const nn::Module& net) {
  Tensors all;
  for (const auto& item : net.named_parameters())
    if (item.value().grad().defined()) all[item.key()] = item.value().grad().clone();
  return all;
}

/// Random numbers as large as `output`, the same in both ways of going backward.
Tensor gradient_for(const Tensor& output) { return test::random(3, output.sizes()); }

struct Expected {
  size_t left = 1;                   // nodes that wait for the second part
  std::vector<std::string> first{};  // parameters whose gradients the first part gives
};

/// In f64. Collective, where the layer's ranks are several.
void expect_split(nn::Module& net, const Forward& forward, const Tensor& input, const Expected& expected) {
  net.to(torch::kFloat64);
  const Tensor plain = input.clone().requires_grad_(), x = input.clone().requires_grad_();
  const Tensor whole = forward(plain);
  whole.backward(gradient_for(whole));
  const Tensors wanted = gradients_of(net);
  ASSERT_EQ(wanted.size(), net.parameters().size());
  for (Tensor& parameter : net.parameters()) parameter.mutable_grad().reset();

  Tensor output = forward(x);
  SplitBackward split({torch::autograd::impl::gradient_edge(output)}, {x});
  const Tensor gradient = gradient_for(output);
  output = Tensor();  // the pass alone keeps the graph
  EXPECT_EQ(split.left(), expected.left);
  split.inputs({gradient});
  ASSERT_TRUE(x.grad().defined());
  EXPECT_LE(distance(x.grad(), plain.grad()), 1e-12);
  EXPECT_GT(x.grad().abs().max().item<double>(), 0);
  const Tensors between = gradients_of(net);
  EXPECT_EQ(between.size(), expected.first.size());
  for (const std::string& name : expected.first) {
    ASSERT_TRUE(between.contains(name)) << name;
    EXPECT_LE(distance(between.at(name), wanted.at(name)), 1e-12) << name;
  }
  const Tensor input_gradient = x.grad().clone();
  split.weights();
  test::expect_close(gradients_of(net), wanted);
  EXPECT_TRUE(torch::equal(x.grad(), input_gradient)) << "the second part has nothing to do with inputs";
}

/// Of three dims libtorch adds the bias in a node of its own.
TEST(SplitBackward, Linear) {
  for (const auto& sizes : {std::vector<int64_t>{5, 6}, {2, 5, 6}}) {
    nn::Linear net(6, 4);
    const Expected expected = sizes.size() == 2 ? Expected{} : Expected{.first = {"bias"}};
    expect_split(
        *net, [&](const Tensor& x) { return net(x); }, test::random(1, sizes), expected);
    nn::Linear bare(nn::LinearOptions(6, 4).bias(false));
    expect_split(*bare, [&](const Tensor& x) { return bare(x); }, test::random(1, sizes), {});
  }
}

TEST(SplitBackward, Convolution) {
  nn::Conv2d net(nn::Conv2dOptions(3, 4, 3).padding(1).stride(2));
  expect_split(*net, [&](const Tensor& x) { return net(x); }, test::random(1, {2, 3, 6, 5}), {});
  nn::Conv2d bare(nn::Conv2dOptions(3, 4, 3).bias(false));
  expect_split(*bare, [&](const Tensor& x) { return bare(x); }, test::random(1, {2, 3, 6, 5}), {});
}

/// The input goes three ways.
TEST(SplitBackward, Attention) {
  layers::ParallelAttention net(8, 2, layers::TensorGroup(), layers::AttentionOptions{.causal = true});
  expect_split(*net, [&](const Tensor& x) { return net(x); }, test::random(1, {3, 5, 8}), {.left = 4});
}

/// The first part has its ranks' sum of gradients of the input; the second needs nobody.
TEST(SplitBackward, LayersOfTensorRanks) {
  test::run_ranks(2, [](World& world) {
    layers::ColumnLinear column = test::seeded(1, [&] { return layers::ColumnLinear(6, 4, world.group()); });
    const Tensor x = test::random(1, {5, 6});
    expect_split(*column, [&](const Tensor& input) { return column(input); }, x, {});
    layers::RowLinear row = test::seeded(1, [&] { return layers::RowLinear(6, 4, world.group()); });
    expect_split(*row, [&](const Tensor& input) { return row(input); }, x.narrow(1, 3 * world.rank(), 3).contiguous(),
                 {.first = {"bias"}});
    layers::ParallelAttention attention =
        test::seeded(1, [&] { return layers::ParallelAttention(8, 2, world.group()); });
    expect_split(*attention, [&](const Tensor& input) { return attention(input); }, test::random(2, {3, 5, 8}),
                 {.left = 4, .first = {"out.bias"}});
  });
}

/// What is small is not worth a wait, and what is reached in two ways would be computed twice.
TEST(SplitBackward, WhatStaysInTheFirstPart) {
  nn::Sequential norm(nn::Linear(6, 6), nn::LayerNorm(nn::LayerNormOptions({6})), nn::Linear(6, 3));
  expect_split(*norm, [&](const Tensor& x) { return norm->forward(x); }, test::random(1, {5, 6}),
               {.left = 2, .first = {"1.weight", "1.bias"}});
  nn::Linear twice(6, 6);
  expect_split(*twice, [&](const Tensor& x) { return twice(torch::tanh(twice(x))); }, test::random(1, {5, 6}),
               {.left = 0, .first = {"weight", "bias"}});
}

/// The first stage of a pipeline: nobody waits for anything.
TEST(SplitBackward, WithoutInputsAllIsLeftForTheSecondPart) {
  nn::Linear net(6, 4);
  net->to(torch::kFloat64);
  const Tensor x = test::random(1, {5, 6});
  const Tensor whole = net(x);
  whole.backward(gradient_for(whole));
  const Tensors wanted = gradients_of(*net);
  for (Tensor& parameter : net->parameters()) parameter.mutable_grad().reset();
  Tensor output = net(x);
  SplitBackward split({torch::autograd::impl::gradient_edge(output)}, {});
  split.inputs({gradient_for(output)});
  EXPECT_TRUE(gradients_of(*net).empty());
  split.weights();
  test::expect_close(gradients_of(*net), wanted);
}

}  // namespace
}  // namespace trireme
