// label: unit
// Our optimizers against libtorch's own.
#include <gtest/gtest.h>

#include <trireme/trireme.h>

#include "ranks.h"

namespace trireme {
namespace {

using Make = std::function<std::unique_ptr<torch::optim::Optimizer>(std::vector<torch::Tensor>)>;

struct Case {
  const char* name;
  space::UpdaterOptions ours;
  Make theirs;
};

template <class O, class Options>
Make torch_optimizer(Options options) {
  return
      [options](std::vector<torch::Tensor> parameters) { return std::make_unique<O>(std::move(parameters), options); };
}

std::vector<Case> cases() {
  using namespace torch::optim;
  return {
      {"sgd", sgd({.lr = 0.05}), torch_optimizer<SGD>(SGDOptions(0.05))},
      {"sgd_decay", sgd({.lr = 0.05, .weight_decay = 0.01}), torch_optimizer<SGD>(SGDOptions(0.05).weight_decay(0.01))},
      {"momentum", momentum({.lr = 0.05, .momentum = 0.9}), torch_optimizer<SGD>(SGDOptions(0.05).momentum(0.9))},
      {"nesterov_decay", momentum({.lr = 0.05, .momentum = 0.8, .nesterov = true, .weight_decay = 0.02}),
       torch_optimizer<SGD>(SGDOptions(0.05).momentum(0.8).nesterov(true).weight_decay(0.02))},
      {"adagrad", adagrad({.lr = 0.05}), torch_optimizer<Adagrad>(AdagradOptions(0.05))},
      {"adagrad_decay", adagrad({.lr = 0.05, .weight_decay = 0.02}),
       torch_optimizer<Adagrad>(AdagradOptions(0.05).weight_decay(0.02))},
      {"adam", adam({.lr = 0.01}), torch_optimizer<Adam>(AdamOptions(0.01))},
      {"adam_decay", adam({.lr = 0.01, .weight_decay = 0.02}),
       torch_optimizer<Adam>(AdamOptions(0.01).weight_decay(0.02))},
      {"adamw", adamw({.lr = 0.01, .weight_decay = 0.05}),
       torch_optimizer<AdamW>(AdamWOptions(0.01).weight_decay(0.05))},
  };
}

class AgainstLibtorch : public testing::TestWithParam<std::tuple<size_t, torch::ScalarType>> {};

TEST_P(AgainstLibtorch, AgreesAfterHundredSteps) {
  const Case c = cases()[std::get<0>(GetParam())];
  const torch::ScalarType type = std::get<1>(GetParam());
  torch::manual_seed(3);
  auto ours = models::mlp({12, 24, 5}), theirs = models::mlp({12, 24, 5});
  ours->to(type), theirs->to(type);
  {
    const torch::NoGradGuard no_grad;
    for (size_t i = 0; i < ours->parameters().size(); i++) theirs->parameters()[i].copy_(ours->parameters()[i]);
  }
  test::run_ranks(1, [&](World& world) {
    auto train = parallel(world, *ours, c.ours);
    const auto optimizer = c.theirs(theirs->parameters());
    for (int step = 0; step < 100; step++) {
      const auto x = torch::randn({16, 12}, type);
      const auto y = torch::randint(0, 5, {16}, torch::kInt64);
      train.step([&] { return torch::cross_entropy_loss(ours->forward(x), y); });
      optimizer->zero_grad();
      torch::cross_entropy_loss(theirs->forward(x), y).backward();
      optimizer->step();
    }
  });
  for (size_t i = 0; i < ours->parameters().size(); i++) {
    const auto difference = (ours->parameters()[i] - theirs->parameters()[i]).abs().max().item<double>();
    EXPECT_LT(difference, type == torch::kFloat64 ? 1e-12 : 1e-6) << c.name << " parameter " << i;
  }
}

INSTANTIATE_TEST_SUITE_P(All, AgainstLibtorch,
                         testing::Combine(testing::Range<size_t>(0, 9),
                                          testing::Values(torch::kFloat32, torch::kFloat64)),
                         [](const auto& info) {
                           return std::string(cases()[std::get<0>(info.param)].name) + "_" +
                                  c10::toString(std::get<1>(info.param));
                         });

TEST(Schedule, ReachesTheUpdates) {
  test::run_ranks(1, [](World& world) {
    auto net = models::linear(1, 1);
    auto train =
        parallel(world, *net, sgd({.lr = 1}), {.schedule = {.kind = RateSchedule::step, .step_size = 2, .gamma = 0.5}});
    std::vector<double> weights = {net->parameters()[1].item<double>()};
    for (int step = 0; step < 5; step++) {
      train.step([&] { return net->forward(torch::zeros({1, 1})).sum(); });  // gradient of the bias: 1
      weights.push_back(net->parameters()[1].item<double>());
    }
    const double rates[] = {1, 1, 0.5, 0.5, 0.25};
    for (size_t i = 0; i < 5; i++) EXPECT_NEAR(weights[i] - weights[i + 1], rates[i], 1e-6);
  });
}

}  // namespace
}  // namespace trireme
