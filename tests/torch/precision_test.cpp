// label: unit
// Matrix products in bf16 with parameters, optimizer state and sums in f32, against libtorch's own autocast.
#include <ATen/autocast_mode.h>
#include <gtest/gtest.h>

#include <trireme/parallel/precision.h>
#include <trireme/trireme.h>

#include "ranks.h"

namespace trireme {
namespace {

using torch::Tensor;
namespace nn = torch::nn;

nn::Sequential small_net() {
  torch::manual_seed(4);
  return nn::Sequential(nn::Linear(20, 64), nn::LayerNorm(nn::LayerNormOptions({64})), nn::ReLU(), nn::Linear(64, 64),
                        nn::GELU(), nn::Linear(64, 5));
}

/// Five classes that a linear map tells apart.
std::pair<Tensor, Tensor> samples(int call, int rank = 0) {
  const Tensor x = torch::sin(torch::arange(320, torch::kFloat32) * (0.37 + call * 0.11 + rank * 0.05)).view({16, 20});
  return {x, (x.view({16, 5, 4}).sum(2)).argmax(1)};
}

Tensor loss_of(nn::Sequential& net, int call, int rank = 0) {
  const auto [x, y] = samples(call, rank);
  return nn::functional::cross_entropy(net->forward(x), y);
}

ParallelOptions in(Precision precision) { return {.precision = precision}; }

double difference(const std::vector<Tensor>& a, const std::vector<Tensor>& b) {
  double most = 0;
  for (size_t i = 0; i < a.size(); i++) most = std::max(most, (a[i] - b[i]).abs().max().item<double>());
  return most;
}

struct Trained {
  std::vector<Tensor> parameters;
  double loss = 0;
};

Trained trained(Precision precision, int ranks, int steps) {
  Trained result;
  static std::mutex one_at_a_time;
  test::run_ranks(ranks, [&](World& world) {
    nn::Sequential net = [] {
      const std::lock_guard lock(one_at_a_time);
      return small_net();
    }();
    Parallel train(world, *net, momentum({.lr = 0.005}), in(precision));
    double last = 0;  // mean of the last round
    for (int call = 0; call < steps; call++) {
      const Step done = train.step([&] { return loss_of(net, call % 8, ranks == 1 ? 0 : world.rank()); });
      if (call + 8 >= steps) last += done.loss / 8;
    }
    train.settled([&] {
      if (!world.first()) return;
      for (const Tensor& p : net->parameters()) result.parameters.push_back(p.detach().clone());
      result.loss = last;
    });
    world.comm().barrier("the end");
  });
  return result;
}

TEST(PrecisionTest, is_the_autocast_of_libtorch_with_an_optimizer_in_f32) {
  nn::Sequential net = small_net();
  torch::optim::SGD optimizer(net->parameters(), torch::optim::SGDOptions(0.005).momentum(0.9));
  for (int call = 0; call < 10; call++) {
    optimizer.zero_grad();
    Tensor loss;
    {
      at::autocast::set_autocast_cpu_dtype(at::kBFloat16);
      at::autocast::set_cpu_enabled(true);
      const auto [x, y] = samples(call % 8);
      Tensor h = x;
      for (size_t i = 0; i < net->size(); i++) {
        if (i == 1) h = h.to(torch::kFloat32);  // libtorch's layer norm would fail
        h = (net->begin() + static_cast<ptrdiff_t>(i))->forward<Tensor>(h);
      }
      loss = nn::functional::cross_entropy(h, y);
      at::autocast::set_cpu_enabled(false);
      at::autocast::clear_cache();
    }
    loss.backward();
    optimizer.step();
  }
  const Trained mine = trained(Precision::bf16, 1, 10);
  std::vector<Tensor> theirs;
  for (const Tensor& p : net->parameters()) theirs.push_back(p.detach());
  EXPECT_LE(difference(mine.parameters, theirs), 1e-6);
  EXPECT_GT(difference(mine.parameters, trained(Precision::f32, 1, 10).parameters), 1e-5);  // another computation
}

TEST(PrecisionTest, learns_as_f32_does) {
  for (int ranks : {1, 2}) {
    const double exact = trained(Precision::f32, ranks, 160).loss, rounded = trained(Precision::bf16, ranks, 160).loss;
    EXPECT_LT(exact, 0.8);  // it began with ln 5, 1.6
    EXPECT_NEAR(rounded, exact, 0.05 * exact + 0.005) << ranks;
  }
}

/// Steps of 1e-5 on weights around 1: bf16 cannot tell 1 from 1.00001, f32 adds them up.
TEST(PrecisionTest, keeps_small_steps) {
  test::run_ranks(1, [](World& world) {
    nn::Linear layer(4, 1);
    {
      const torch::NoGradGuard no_grad;
      for (Tensor& p : layer->parameters()) p.fill_(1);
    }
    Parallel train(world, *layer, sgd({.lr = 1e-5}), in(Precision::bf16));
    for (int i = 0; i < 100; i++)
      train.step([&] {
        const Tensor y = layer(torch::ones({2, 4}));
        EXPECT_EQ(y.scalar_type(), torch::kBFloat16);
        return y.sum() / 2;
      });
    EXPECT_EQ(layer->weight.scalar_type(), torch::kFloat32);
    EXPECT_NEAR(layer->weight[0][0].item<double>(), 1 - 100e-5, 1e-5);
    EXPECT_FALSE(at::autocast::is_cpu_enabled());
    EXPECT_EQ(layer(torch::ones({2, 4})).scalar_type(), torch::kFloat32);
  });
}

TEST(PrecisionTest, the_weight_of_a_loss_is_not_rounded) {
  test::run_ranks(1, [](World& world) {
    nn::Linear layer(2, 1);
    ParallelOptions options = in(Precision::bf16);
    options.exchange.sync = Sync::allreduce;
    Parallel train(world, *layer, std::nullopt, options);
    const double weight = 1.0 / 3 + 1e-4;
    train.step(weight, [&] { return layer(torch::ones({1, 2})).sum(); });  // a loss in bf16
    EXPECT_NEAR(layer->bias.grad().item<double>(), weight, 2e-3);
    EXPECT_EQ(layer->bias.grad().scalar_type(), torch::kFloat32);
  });
}

TEST(PrecisionTest, norms_take_what_products_give) {
  nn::Sequential net(nn::Conv2d(1, 4, 3), nn::GroupNorm(nn::GroupNormOptions(2, 4)), nn::Conv2d(4, 4, 3),
                     nn::BatchNorm2d(4), nn::Flatten(), nn::Linear(64, 8),
                     nn::LayerNorm(nn::LayerNormOptions({8}).elementwise_affine(false)));
  const Tensor x = torch::randn({3, 1, 8, 8});
  const Tensor exact = net->forward(x);
  const InPrecision precision(Precision::bf16);
  const Tensor rounded = net->forward(x);
  EXPECT_LE((exact - rounded).abs().max().item<double>(), 0.1);
  rounded.pow(2).mean().backward();
  for (const Tensor& p : net->parameters()) EXPECT_EQ(p.grad().scalar_type(), torch::kFloat32);
}

TEST(PrecisionTest, computing_again_rounds_again) {
  const auto gradients = [](bool again) {
    nn::Sequential net = small_net();
    Tensor loss;
    {
      const InPrecision precision(Precision::bf16);
      const auto [x, y] = samples(1);
      loss = nn::functional::cross_entropy(again ? recompute(*net, x) : net->forward(x), y);
    }
    loss.backward();
    std::vector<Tensor> all;
    for (const Tensor& p : net->parameters()) all.push_back(p.grad());
    return all;
  };
  EXPECT_EQ(difference(gradients(true), gradients(false)), 0);
}

std::string refusal(const std::function<void()>& call) {
  try {
    call();
    return "";
  } catch (const Error& error) {
    return error.what();
  }
}

TEST(PrecisionTest, refuses_where_it_makes_no_sense) {
  test::run_ranks(1, [](World& world) {
    nn::Linear layer(4, 1);
    layer->to(torch::kFloat64);
    EXPECT_NE(refusal([&] { Parallel(world, *layer, sgd({.lr = 1}), in(Precision::bf16)); }).find("'weight' is F64"),
              std::string::npos);
    nn::BatchNorm1d vector(4);
    EXPECT_NE(
        refusal([&] { Parallel(world, *vector, sgd({.lr = 1}), in(Precision::bf16)); }).find("no parameter with two"),
        std::string::npos);
  });
  EXPECT_NE(refusal([] { precision_named("fp16"); }).find("f32 or bf16"), std::string::npos);
}

TEST(PrecisionTest, ranks_agree_on_it) {
  const std::string text = refusal([] {
    test::run_ranks(2, [](World& world) {
      nn::Linear layer(4, 1);
      Parallel(world, *layer, sgd({.lr = 1}), in(world.first() ? Precision::bf16 : Precision::f32));
    });
  });
  EXPECT_NE(text.find("precision"), std::string::npos) << text;
}

}  // namespace
}  // namespace trireme
