// label: unit
// Activations that are computed twice: the same gradients as without it, less memory, and nothing else changes.
#include <c10/core/Allocator.h>
#include <c10/util/ThreadLocalDebugInfo.h>
#include <gtest/gtest.h>

#include <trireme/torch/compat.h>
#include <trireme/trireme.h>

#include "ranks.h"

namespace trireme {
namespace {

using torch::Tensor;
namespace nn = torch::nn;

constexpr int64_t kWidth = 96;  // large enough for gradients that are born in place

struct BlockImpl : nn::Module {
  nn::Linear in{nullptr}, out{nullptr};
  nn::Dropout dropout{nullptr};
  explicit BlockImpl(double rate) {
    in = register_module("in", nn::Linear(kWidth, 4 * kWidth));
    out = register_module("out", nn::Linear(4 * kWidth, kWidth));
    dropout = register_module("dropout", nn::Dropout(rate));
  }
  Tensor forward(const Tensor& x) { return x + dropout(out(torch::gelu(in(x)))); }
};
TORCH_MODULE(Block);

/// Blocks between an embedding and its transpose: a parameter that a part shares with what is outside of parts.
struct Net : nn::Module {
  nn::Embedding table{nullptr};
  std::vector<Block> blocks;
  Tensor scale;  // used by every block
  bool again;
  Net(bool again, double rate, int depth = 4, torch::Dtype dtype = torch::kFloat64) : again(again) {
    torch::manual_seed(7);
    table = register_module("table", nn::Embedding(17, kWidth));
    for (int i = 0; i < depth; i++) blocks.push_back(register_module(fmt::format("b{}", i), Block(rate)));
    scale = register_parameter("scale", torch::ones({1}));
    to(dtype);
  }
  Tensor forward(const Tensor& tokens) {
    Tensor x = again ? recompute([this](const Tensor& t) { return table(t) * scale; }, tokens) : table(tokens) * scale;
    for (Block& block : blocks) {
      const auto part = [&block, this](const Tensor& input) { return block->forward(input * scale); };
      x = again ? recompute(part, x) : part(x);
    }
    return torch::matmul(x, table->weight.t());
  }
  Tensor loss(int call) {
    const Tensor tokens = torch::arange(24).mul(call + 3).remainder(17).view({4, 6});
    return nn::functional::cross_entropy(forward(tokens).flatten(0, 1), (tokens + 1).remainder(17).flatten());
  }
};

double difference(const std::vector<Tensor>& a, const std::vector<Tensor>& b) {
  EXPECT_EQ(a.size(), b.size());
  double most = 0;
  for (size_t i = 0; i < a.size(); i++) most = std::max(most, (a[i] - b[i]).abs().max().item<double>());
  return most;
}

std::vector<Tensor> gradients(bool again, double rate) {
  Net net(again, rate);
  torch::manual_seed(3);
  net.loss(0).backward();
  std::vector<Tensor> all;
  for (const Tensor& p : net.parameters()) all.push_back(p.grad().clone());
  all.push_back(torch::rand({4}, torch::kFloat64));  // the generator goes on as it would have
  return all;
}

TEST(Recompute, gradients_are_those_of_the_plain_model) {
  EXPECT_LE(difference(gradients(true, 0), gradients(false, 0)), 1e-15);
}

TEST(Recompute, random_numbers_are_drawn_once) {
  EXPECT_LE(difference(gradients(true, 0.3), gradients(false, 0.3)), 1e-15);
  EXPECT_GT(difference(gradients(true, 0.3), gradients(true, 0)), 1e-3);
}

TEST(Recompute, a_parameter_of_several_parts_arrives_once) {
  Net net(true, 0);
  int arrivals = 0;
  const auto node = torch_compat::on_gradient(net.scale, [&] { arrivals++; });
  const auto of_table = torch_compat::on_gradient(net.table->weight, [&] { arrivals += 100; });
  net.loss(0).backward();
  EXPECT_EQ(arrivals, 101);
}

TEST(Recompute, parts_may_have_parts) {
  const Tensor w = torch::full({3}, 0.7, torch::kFloat64).requires_grad_();
  const auto inner = [&](const Tensor& x) { return torch::tanh(x * w); };
  const auto outer = [&](const Tensor& x) { return recompute(inner, inner(x)).sin(); };
  const Tensor x = torch::tensor({0.1, 0.2, 0.3}, torch::kFloat64).requires_grad_();
  const auto mine = torch::autograd::grad({recompute(outer, x).sum()}, {x, w});
  const auto plain = torch::autograd::grad({inner(inner(x)).sin().sum()}, {x, w});
  EXPECT_LE(difference(mine, plain), 1e-15);
}

TEST(Recompute, without_gradients_it_is_a_call) {
  int runs = 0;
  const auto f = [&](const Tensor& x) { return runs++, x * 2; };
  const Tensor x = torch::ones({2}).requires_grad_();
  {
    const torch::NoGradGuard no_grad;
    EXPECT_FALSE(recompute(f, x).requires_grad());
  }
  EXPECT_FALSE(recompute(f, x.detach()).requires_grad());
  EXPECT_EQ(runs, 2);
  recompute(f, x).sum().backward();
  EXPECT_EQ(runs, 4);
  EXPECT_FALSE(recomputing());
}

TEST(Recompute, frozen_parameters_stay_without) {
  Net net(true, 0);
  net.blocks[1]->in->weight.requires_grad_(false);
  net.loss(0).backward();
  EXPECT_FALSE(net.blocks[1]->in->weight.grad().defined());
  EXPECT_TRUE(net.blocks[1]->in->bias.grad().defined());
}

TEST(Recompute, refuses_what_comes_from_outside) {
  const Tensor w = torch::ones({3}).requires_grad_();
  const Tensor outside = w * 2;
  try {
    recompute([&](const Tensor& x) { return x * outside; }, torch::ones({3}));
    FAIL();
  } catch (const InvalidArgument& error) {
    EXPECT_NE(std::string(error.what()).find("computed before it (MulBackward"), std::string::npos) << error.what();
  }
}

TEST(Recompute, second_derivatives_are_refused) {
  const Tensor x = torch::ones({3}).requires_grad_();
  const Tensor y = recompute([](const Tensor& t) { return t * t; }, x).sum();
  EXPECT_THROW(torch::autograd::grad({y}, {x}, {}, true, /*create_graph=*/true), c10::Error);
}

/// Trains on two ranks, whose data differ; one bucket for every parameter, so that they leave during backward.
std::vector<Tensor> trained(bool again, double rate, int accumulate, exchange::Sync sync) {
  std::vector<Tensor> result;
  test::run_ranks(2, [&](World& world) {
    static std::mutex one_at_a_time;  // the seed is the process's
    std::unique_ptr<Net> net;
    {
      const std::lock_guard lock(one_at_a_time);
      net = std::make_unique<Net>(again, rate);
    }
    ParallelOptions options{.accumulate = accumulate};
    options.exchange.sync = sync;
    options.exchange.bucket_bytes = 1;
    Parallel train(world, *net, adam({.lr = 1e-3}), options);
    for (int call = 0; call < 6 * accumulate; call++) train.step([&] { return net->loss(2 * call + world.rank()); });
    train.settled([&] {
      if (!world.first()) return;
      for (const Tensor& p : net->parameters()) result.push_back(p.detach().clone());
    });
    world.comm().barrier("the end");
  });
  return result;
}

TEST(Recompute, trains_as_the_plain_model_does) {
  for (const auto sync : {exchange::Sync::shared, exchange::Sync::allreduce})
    for (int accumulate : {1, 2})
      EXPECT_LE(difference(trained(true, 0, accumulate, sync), trained(false, 0, accumulate, sync)), 1e-15);
}

TEST(Recompute, layers_of_a_sequential_run_in_parts) {
  const auto run = [](bool again) {
    torch::manual_seed(5);
    nn::Sequential net(nn::Conv2d(1, 4, 3), nn::BatchNorm2d(4), nn::ReLU(), nn::Dropout(0.4), nn::Conv2d(4, 4, 3),
                       nn::BatchNorm2d(4), nn::ReLU(), nn::Flatten(), nn::Linear(64, 3));
    net->to(torch::kFloat64);
    const Tensor x = torch::randn({6, 1, 8, 8}, torch::kFloat64);
    (again ? recompute(*net, x) : net->forward(x)).pow(2).mean().backward();
    std::vector<Tensor> all;
    for (const Tensor& p : net->parameters()) all.push_back(p.grad());
    for (const Tensor& b : net->buffers()) all.push_back(b.to(torch::kFloat64));
    all.push_back(torch::rand({2}, torch::kFloat64));
    return all;
  };
  EXPECT_LE(difference(run(true), run(false)), 1e-15);
}

/// Each part begins with a layer that changes its input.
TEST(Recompute, parts_of_a_sequential_may_begin_in_place) {
  const auto run = [](bool again) {
    torch::manual_seed(5);
    const auto relu = [] { return nn::ReLU(nn::ReLUOptions(true)); };
    nn::Sequential net(nn::LeakyReLU(nn::LeakyReLUOptions().inplace(true)), nn::Linear(8, 8), nn::Linear(8, 8), relu(),
                       nn::Linear(8, 8), nn::Linear(8, 8), nn::Dropout(nn::DropoutOptions(0.3).inplace(true)),
                       nn::Linear(8, 8), nn::Linear(8, 3));
    net->to(torch::kFloat64);
    const Tensor x = torch::randn({6, 8}, torch::kFloat64);
    (again ? recompute(*net, x) : net->forward(x)).pow(2).mean().backward();
    std::vector<Tensor> all;
    for (const Tensor& p : net->parameters()) all.push_back(p.grad());
    return all;
  };
  EXPECT_LE(difference(run(true), run(false)), 1e-15);
}

/// Counts this thread's bytes that libtorch holds.
struct Meter : c10::MemoryReportingInfoBase {
  int64_t now = 0, most = 0;
  void reportMemoryUsage(void*, int64_t bytes, int64_t, int64_t, c10::Device) override {
    most = std::max(most, now += bytes);
  }
  bool memoryProfilingEnabled() const override { return true; }
};

int64_t most_bytes(bool again, int depth) {
  Net net(again, 0, depth, torch::kFloat32);
  const Tensor tokens = torch::zeros({64, 32}, torch::kLong);
  const auto meter = std::make_shared<Meter>();
  const c10::DebugInfoGuard guard(c10::DebugInfoKind::PROFILER_STATE, meter);
  net.forward(tokens).mean().backward();
  return meter->most;
}

/// A block keeps at least 2 × 4 widths and its input per token; with recompute its input.
TEST(Recompute, keeps_the_inputs_of_parts_alone) {
  const int64_t input = 64 * 32 * kWidth * 4, weights = 8 * kWidth * kWidth * 4;
  const int64_t plain = (most_bytes(false, 12) - most_bytes(false, 4)) / 8;
  const int64_t again = (most_bytes(true, 12) - most_bytes(true, 4)) / 8;
  EXPECT_GE(plain, 9 * input);
  EXPECT_GE(again, input);
  EXPECT_LE(again, input + weights + weights / 4) << input << " and " << weights;  // and its gradients
}

}  // namespace
}  // namespace trireme
