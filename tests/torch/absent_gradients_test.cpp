// label: unit
// Layers without a gradient in some steps, against libtorch's optimizers, which skip them and do not count the step.
#include <gtest/gtest.h>

#include <trireme/trireme.h>

#include "ranks.h"

namespace trireme {
namespace {

constexpr int kSteps = 30;
constexpr size_t kLayers = 5;

/// Every step uses some of the layers.
struct Net : torch::nn::Module {
  std::vector<torch::nn::Linear> layers;
  Net() {
    for (size_t i = 0; i < kLayers; i++)
      layers.push_back(register_module(fmt::format("l{}", i), torch::nn::Linear(7, 7)));
    to(torch::kFloat64);
    const torch::NoGradGuard no_grad;
    double shift = 0;
    for (auto& p : parameters())
      p.copy_(torch::sin(torch::arange(p.numel(), torch::kFloat64) + (shift += 1)).view(p.sizes()) / 3);
  }

  /// Layer 0 always, 1 in two steps of three, 2 from step 11 on, 3 by some ranks alone and rarely by none, 4 never.
  static bool uses(size_t layer, int step, int rank) {
    const bool by_step[] = {true, step % 3 != 1, step >= 11, step % 4 == 0 || (step % 4 == 2 && rank % 2 == 1), false};
    return by_step[layer];
  }

  torch::Tensor loss(int step, int rank) {
    torch::Tensor x = torch::cos(torch::arange(21, torch::kFloat64) * (step + 1) + rank).view({3, 7});
    for (size_t i = 0; i < kLayers; i++)
      if (uses(i, step, rank)) x = torch::tanh(layers[i](x));
    return x.pow(2).mean();
  }
};

/// The ranks' mean loss in one process.
std::vector<torch::Tensor> train_alone(bool decoupled, int ranks) {
  Net net;
  std::unique_ptr<torch::optim::Optimizer> optimizer;
  if (decoupled)
    optimizer =
        std::make_unique<torch::optim::AdamW>(net.parameters(), torch::optim::AdamWOptions(0.02).weight_decay(0.1));
  else
    optimizer =
        std::make_unique<torch::optim::Adam>(net.parameters(), torch::optim::AdamOptions(0.02).weight_decay(0.1));
  for (int step = 0; step < kSteps; step++) {
    for (auto& p : net.parameters()) p.mutable_grad().reset();
    torch::Tensor sum = torch::zeros({}, torch::kFloat64);
    for (int rank = 0; rank < ranks; rank++) sum = sum + net.loss(step, rank);
    (sum / ranks).backward();
    optimizer->step();
  }
  std::vector<torch::Tensor> result;
  for (const auto& p : net.parameters()) result.push_back(p.detach().clone());
  return result;
}

struct Mode {
  const char* sync;
  int ranks, servers;
  bool alike = false;  // all ranks have the same samples: each trains on its own
};

class AbsentGradients : public testing::TestWithParam<std::tuple<Mode, bool>> {};

TEST_P(AbsentGradients, StepsAreCountedByLayer) {
  const auto [mode, decoupled] = GetParam();
  const auto wanted = train_alone(decoupled, mode.alike ? 1 : mode.ranks);
  const auto optimizer = decoupled ? adamw({.lr = 0.02, .weight_decay = 0.1}) : adam({.lr = 0.02, .weight_decay = 0.1});
  for (const size_t bucket_bytes : {size_t{1000}, size_t{1} << 20})
    test::run_job(mode.ranks, mode.servers, [&](World& world) {
      Net net;
      auto train =
          parallel(world, net, optimizer, {.sync = exchange::sync_named(mode.sync), .bucket_bytes = bucket_bytes});
      for (int step = 0; step < kSteps; step++)
        train.step([&] { return net.loss(step, mode.alike ? 0 : world.rank()); });
      train.settled([&] {
        for (size_t i = 0; i < wanted.size(); i++) {
          const double error = (net.parameters()[i] - wanted[i]).abs().max().item<double>();
          EXPECT_LT(error, 1e-12) << net.named_parameters()[i].key() << ", buckets of " << bucket_bytes;
        }
        EXPECT_TRUE(torch::equal(net.layers[4]->weight, Net().layers[4]->weight)) << "a layer that nobody uses moved";
      });
    });
}

INSTANTIATE_TEST_SUITE_P(
    Modes, AbsentGradients,
    testing::Combine(testing::Values(Mode{"shared", 1, 0}, Mode{"shared", 2, 0}, Mode{"shared", 3, 0},
                                     Mode{"allreduce", 2, 0}, Mode{"central", 3, 0}, Mode{"server", 1, 1},
                                     Mode{"server", 2, 2}, Mode{"stale:0", 2, 1}, Mode{"async", 1, 2},
                                     Mode{"stale:3", 1, 1}, Mode{"trylock:1", 1, 1}, Mode{"round-robin", 1, 2},
                                     Mode{"hogwild", 1, 0}, Mode{"local:1", 2, 0, true}, Mode{"local:3", 2, 0, true},
                                     Mode{"local:2", 2, 1, true}, Mode{"elastic:30,1", 1, 1}),
                     testing::Bool()),
    [](const auto& info) {
      const Mode& mode = std::get<0>(info.param);
      std::string name = mode.sync;
      for (char& c : name)
        if (std::isalnum(static_cast<unsigned char>(c)) == 0) c = '_';
      return name + "_" + std::to_string(mode.ranks) + "ranks_" + std::to_string(mode.servers) + "servers" +
             (std::get<1>(info.param) ? "_adamw" : "_adam");
    });

}  // namespace
}  // namespace trireme
