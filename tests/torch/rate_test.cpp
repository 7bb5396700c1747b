// label: unit
// Gradients that are applied one by one, each with its share of the step, against libtorch's optimizers. hogwild, with
// ranks that take turns: then nothing is lost or old, and what remains is what an update counts.
#include <gtest/gtest.h>

#include <functional>
#include <memory>

#include <trireme/trireme.h>

#include "ranks.h"

namespace trireme {
namespace {

constexpr double kLr = 0.05;
constexpr int kSteps = 6;
using Weights = std::vector<std::vector<double>>;  // by rank and micro-batch: parts of the step's samples
using Make = std::function<std::unique_ptr<torch::optim::Optimizer>(std::vector<torch::Tensor>, double lr)>;

struct Case {
  const char* name;
  space::UpdaterOptions ours;
  Make theirs;
};

std::vector<Case> cases() {
  return {
      {"sgd", sgd({.lr = kLr, .weight_decay = 0.1}),
       [](auto p, double lr) {
         return std::make_unique<torch::optim::SGD>(p, torch::optim::SGDOptions(lr).weight_decay(0.1));
       }},
      {"momentum", momentum({.lr = kLr, .momentum = 0.9}),
       [](auto p, double lr) {
         return std::make_unique<torch::optim::SGD>(p, torch::optim::SGDOptions(lr).momentum(0.9).nesterov(true));
       }},
      {"adagrad", adagrad({.lr = kLr}),
       [](auto p, double lr) { return std::make_unique<torch::optim::Adagrad>(p, torch::optim::AdagradOptions(lr)); }},
      {"adam", adam({.lr = kLr}),
       [](auto p, double lr) { return std::make_unique<torch::optim::Adam>(p, torch::optim::AdamOptions(lr)); }},
      {"adamw", adamw({.lr = kLr, .weight_decay = 0.1}), [](auto p, double lr) {
         return std::make_unique<torch::optim::AdamW>(p, torch::optim::AdamWOptions(lr).weight_decay(0.1));
       }}};
}

torch::Tensor start() { return torch::linspace(-1, 1, 12, torch::kFloat64); }
/// The data of a micro-batch; its loss is the mean over the elements of (θ − x)².
torch::Tensor sample(int rank, int step, int micro) {
  return torch::full({12}, 0.3 * rank - 0.1 * step + 0.7 * micro, torch::kFloat64).cumsum(0);
}
torch::Tensor loss_of(const torch::Tensor& parameter, const torch::Tensor& x) { return (parameter - x).pow(2).mean(); }

struct Net : torch::nn::Module {
  torch::Tensor parameter = register_parameter("p", start());
};

/// Ranks take turns, `weights` says what they have of a step.
torch::Tensor take_turns(const Weights& weights, const space::UpdaterOptions& optimizer, Rate rate) {
  torch::Tensor result;
  const int ranks = static_cast<int>(weights.size()), micros = static_cast<int>(weights[0].size());
  test::run_ranks(ranks, [&](World& world) {
    Net net;
    auto train =
        parallel(world, net, optimizer, {.exchange = {.sync = Sync::hogwild, .rate = rate}, .accumulate = micros});
    for (int step = 0; step < kSteps; step++)
      for (int turn = 0; turn < ranks; turn++) {
        for (int micro = 0; turn == world.rank() && micro < micros; micro++)
          train.step(weights[static_cast<size_t>(turn)][static_cast<size_t>(micro)],
                     [&] { return loss_of(net.parameter, sample(turn, step, micro)); });
        world.comm().barrier("turn");
      }
    if (world.first()) result = net.parameter.detach().clone();
  });
  return result;
}

/// The same with one libtorch optimizer per rank, all on one parameter.
torch::Tensor expected(const Weights& weights, const Make& make, const std::function<double(double share)>& rate_of) {
  torch::Tensor parameter = start().requires_grad_();
  std::vector<std::unique_ptr<torch::optim::Optimizer>> optimizers;
  for (const auto& own : weights) {
    double share = 0;
    for (double weight : own) share += weight;
    optimizers.push_back(make({parameter}, rate_of(share)));
  }
  for (int step = 0; step < kSteps; step++)
    for (size_t rank = 0; rank < weights.size(); rank++) {
      double share = 0;
      for (double weight : weights[rank]) share += weight;
      if (share == 0) continue;
      optimizers[rank]->zero_grad();
      for (size_t micro = 0; micro < weights[rank].size(); micro++)
        if (const double weight = weights[rank][micro]; weight > 0)
          (loss_of(parameter, sample(static_cast<int>(rank), step, static_cast<int>(micro))) * (weight / share))
              .backward();
      optimizers[rank]->step();
    }
  return parameter.detach().clone();
}

double distance(const torch::Tensor& a, const torch::Tensor& b) { return (a - b).abs().max().item<double>(); }

TEST(Share, EveryUpdateCountsWithItsShareOfTheStep) {
  for (const Weights& weights :
       {Weights{{0.5}, {0.5}}, Weights{{0.75}, {0.25}}, Weights{{0.5}, {0.3}, {0.2}, {0.0}}, Weights{{1.0}, {0.0}}})
    for (const Case& c : cases())
      EXPECT_LT(distance(take_turns(weights, c.ours, Rate::share),
                         expected(weights, c.theirs, [](double share) { return kLr * share; })),
                1e-12)
          << c.name << ", " << weights.size() << " ranks";
}

TEST(Share, MicroBatchesTogetherAreOneShare) {
  for (const Weights& weights : {Weights{{0.25, 0.25}, {0.25, 0.25}}, Weights{{0.3, 0.3}, {0.2, 0.2}}})
    for (const Case& c : cases())
      EXPECT_LT(distance(take_turns(weights, c.ours, Rate::share),
                         expected(weights, c.theirs, [](double share) { return kLr * share; })),
                1e-12)
          << c.name;
  // Where rate times gradient is all that counts, uneven micro-batches are exact too.
  for (const Weights& weights : {Weights{{0.5, 0.1}, {0.3, 0.1}}, Weights{{0.0, 0.6}, {0.4, 0.0}}})
    EXPECT_LT(distance(take_turns(weights, sgd({.lr = kLr}), Rate::share),
                       expected(
                           weights,
                           [](auto p, double lr) {
                             return std::make_unique<torch::optim::SGD>(p, torch::optim::SGDOptions(lr));
                           },
                           [](double share) { return kLr * share; })),
              1e-12);
}

/// Gradients that do not depend on the parameters: N of them, one by one, move as far as one with their mean.
TEST(Share, TheGradientsOfAStepMoveAsFarAsOneSynchronousStep) {
  const torch::Tensor slope = torch::linspace(-2, 3, 12, torch::kFloat64);
  for (const Case& c : cases()) {
    if (c.ours.weight_decay > 0) continue;
    torch::Tensor alone = start().requires_grad_(), together;
    const auto optimizer = c.theirs({alone}, kLr);
    for (int step = 0; step < kSteps; step++) {
      optimizer->zero_grad();
      (alone * slope).sum().backward();
      optimizer->step();
    }
    test::run_ranks(4, [&](World& world) {
      Net net;
      auto train = parallel(world, net, c.ours, {.sync = Sync::hogwild});
      for (int turn = 0; turn < 4 * kSteps; turn++) {
        if (turn % 4 == world.rank()) train.step([&] { return (net.parameter * slope).sum(); });
        world.comm().barrier("turn");
      }
      if (world.first()) together = net.parameter.detach().clone();
    });
    EXPECT_LT(distance(together, alone.detach()), 1e-12) << c.name;
  }
}

TEST(Share, TheFullRateIsEveryWorkersOwn) {
  const Weights weights = {{0.5}, {0.5}};
  const auto momentum_of = [](auto p, double lr) {
    return std::make_unique<torch::optim::SGD>(p, torch::optim::SGDOptions(lr).momentum(0.9));
  };
  EXPECT_LT(distance(take_turns(weights, momentum({.lr = kLr, .momentum = 0.9}), Rate::full),
                     expected(weights, momentum_of, [](double) { return kLr; })),
            1e-12);
}

TEST(Share, OneWorkerHasWholeSteps) {
  const Weights weights = {std::vector<double>{1.0}};
  for (const Case& c : cases()) {
    const torch::Tensor share = take_turns(weights, c.ours, Rate::share),
                        full = take_turns(weights, c.ours, Rate::full);
    EXPECT_TRUE(torch::equal(share, full)) << c.name;
  }
  const auto plain = [](auto p, double lr) {
    return std::make_unique<torch::optim::SGD>(p, torch::optim::SGDOptions(lr).momentum(0.9));
  };
  EXPECT_LT(distance(take_turns(weights, momentum({.lr = kLr, .momentum = 0.9}), Rate::share),
                     expected(weights, plain, [](double) { return kLr; })),
            1e-12)
      << "momentum as it was asked for";
}

TEST(Share, TheFullRateIsRefusedWhereThereAreNoShares) {
  for (const Sync& sync : {Sync(Sync::shared), Sync(Sync::allreduce), Sync::local_for(2)})
    test::run_ranks(1, [&](World& world) {
      Net net;
      EXPECT_THROW(parallel(world, net, sgd({.lr = kLr}), {.sync = sync, .rate = Rate::full}), InvalidArgument);
    });
}

}  // namespace
}  // namespace trireme
