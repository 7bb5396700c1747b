// label: unit
// Layers that are frozen and unfrozen while training, against libtorch's optimizers in one process.
#include <gtest/gtest.h>

#include <trireme/trireme.h>

#include "ranks.h"

namespace trireme {
namespace {

constexpr int kSteps = 24;

/// Layers that are large enough for gradients that are born in place, and a parameter that cannot be trained at all.
struct Net : torch::nn::Module {
  std::vector<torch::nn::Linear> layers;
  torch::Tensor table;
  Net() {
    for (size_t i = 0; i < 4; i++) layers.push_back(register_module(fmt::format("l{}", i), torch::nn::Linear(80, 80)));
    table = register_parameter("table", torch::arange(9), false);
    to(torch::kFloat64);
    table.set_data(torch::arange(9));
    const torch::NoGradGuard no_grad;
    double shift = 0;
    for (auto& p : parameters())
      if (p.is_floating_point())
        p.copy_(torch::sin(torch::arange(p.numel(), torch::kFloat64) + (shift += 1)).view(p.sizes()) / 9);
    freeze(0);
  }

  /// What a user does between calls of step(): layer 0 trains in calls 7 to 39, layer 1 until call 20, layer 2 in
  /// turns. Layer 3 always.
  void freeze(int call) {
    for (auto& p : layers[0]->parameters()) p.requires_grad_(call >= 7 && call < 40);
    layers[1]->weight.requires_grad_(call < 20);
    layers[2]->bias.requires_grad_(call / 5 % 2 == 1);
  }

  torch::Tensor loss(int call, int rank) {
    torch::Tensor x = torch::cos(torch::arange(240, torch::kFloat64) * (call + 1) + rank).view({3, 80});
    for (auto& layer : layers) x = torch::tanh(layer(x));
    return (x * table.sum()).pow(2).mean();
  }
};

std::unique_ptr<torch::optim::Optimizer> adam_of(Net& net) {
  std::vector<torch::Tensor> all;
  for (const auto& p : net.parameters())
    if (p.is_floating_point()) all.push_back(p);
  return std::make_unique<torch::optim::Adam>(all, torch::optim::AdamOptions(0.01).weight_decay(0.1));
}

std::vector<torch::Tensor> train_alone(int ranks, int accumulate) {
  Net net;
  const auto optimizer = adam_of(net);
  for (int step = 0; step < kSteps; step++) {
    for (auto& p : net.parameters()) p.mutable_grad().reset();
    for (int micro = 0; micro < accumulate; micro++) {
      const int call = step * accumulate + micro;
      net.freeze(call);
      for (int rank = 0; rank < ranks; rank++) (net.loss(call, rank) / (ranks * accumulate)).backward();
    }
    optimizer->step();
  }
  std::vector<torch::Tensor> result;
  for (const auto& p : net.parameters()) result.push_back(p.detach().clone());
  return result;
}

struct Mode {
  const char* sync;
  int ranks, servers;
  bool alike = false;      // all ranks have the same samples: each trains on its own
  bool optimizer = false;  // the user's own
};

class Freezing : public testing::TestWithParam<std::tuple<Mode, int>> {};

TEST_P(Freezing, FollowsOneProcess) {
  const auto [mode, accumulate] = GetParam();
  const auto wanted = train_alone(mode.alike ? 1 : mode.ranks, accumulate);
  for (const bool overlap : {true, false})
    for (const bool inside : {false, true})  // of the loss
      test::run_job(mode.ranks, mode.servers, [&](World& world) {
        Net net;
        exchange::Sync sync = exchange::sync_named(mode.sync);
        if (sync.kind == exchange::Sync::diloco) sync.outer_rate = 1, sync.outer_momentum = 0;  // it takes the mean
        const ParallelOptions options{.exchange = {.sync = sync, .bucket_bytes = 100'000, .overlap = overlap},
                                      .accumulate = accumulate};
        Parallel train(world, net,
                       mode.optimizer ? std::nullopt : std::optional(adam({.lr = 0.01, .weight_decay = 0.1})), options);
        const auto own = mode.optimizer ? adam_of(net) : nullptr;
        for (int call = 0; call < kSteps * accumulate; call++) {
          if (!inside) net.freeze(call);
          const Step step = train.step([&] {
            if (inside) net.freeze(call);
            return net.loss(call, mode.alike ? 0 : world.rank());
          });
          if (step.updated && own) own->step();
        }
        train.settled([&] {
          for (size_t i = 0; i < wanted.size(); i++)
            EXPECT_LT((net.parameters()[i] - wanted[i]).abs().max().item<double>(), 1e-9)
                << net.named_parameters()[i].key() << (overlap ? ", overlap" : "")
                << (inside ? ", changed in the loss" : "");
        });
      });
}

std::string name_of_case(const testing::TestParamInfo<std::tuple<Mode, int>>& info) {
  const auto& [mode, accumulate] = info.param;
  std::string name = mode.sync;
  for (char& c : name)
    if (std::isalnum(static_cast<unsigned char>(c)) == 0) c = '_';
  return fmt::format("{}_{}ranks{}_accumulate{}", name, mode.ranks, mode.optimizer ? "_own_optimizer" : "", accumulate);
}

INSTANTIATE_TEST_SUITE_P(
    Modes, Freezing,
    testing::Combine(testing::Values(Mode{"shared", 1, 0}, Mode{"shared", 2, 0}, Mode{"allreduce", 2, 0},
                                     Mode{"central", 2, 0}, Mode{"allreduce", 2, 0, false, true}, Mode{"server", 2, 1},
                                     Mode{"async", 1, 1}, Mode{"hogwild", 1, 0}, Mode{"local:1", 2, 0, true},
                                     Mode{"diloco:1", 2, 0, true}, Mode{"stale:3", 1, 1}, Mode{"trylock:1", 1, 1},
                                     Mode{"round-robin", 1, 1}),
                     testing::Values(1, 3)),
    name_of_case);

TEST(FreezingLater, StopsWithoutAGradientAndWithoutUpdates) {
  test::run_ranks(2, [](World& world) {
    Net net;
    auto train = parallel(world, net, momentum({.lr = 0.1, .weight_decay = 0.1}));
    for (int call = 0; call < 3; call++) train.step([&] { return net.loss(call, world.rank()); });
    net.layers[3]->weight.requires_grad_(false);
    const auto before = net.layers[3]->weight.clone();
    for (int call = 3; call < 6; call++) train.step([&] { return net.loss(call, world.rank()); });
    EXPECT_TRUE(torch::equal(net.layers[3]->weight, before));
    EXPECT_FALSE(net.layers[3]->weight.grad().defined());
    world.comm().barrier("looked");
  });
}

TEST(FreezingLater, AHalfFloatParameterCannotBeUnfrozen) {
  test::run_ranks(1, [](World& world) {
    struct Half : torch::nn::Module {
      torch::nn::Linear layer{register_module("layer", torch::nn::Linear(2, 1))};
      torch::Tensor half = register_parameter("half", torch::ones({4}, torch::kFloat16), false);
    } net;
    auto train = parallel(world, net, sgd());
    const auto step = [&] { train.step([&] { return net.layer(torch::ones({1, 2})).sum(); }); };
    step();
    net.half.requires_grad_(true);
    try {
      step();
      FAIL() << "no error";
    } catch (const InvalidArgument& error) {
      EXPECT_NE(std::string(error.what()).find("'half' has type f16"), std::string::npos) << error.what();
    }
  });
}

}  // namespace
}  // namespace trireme
