// label: unit
// N ranks against a plain libtorch loop in one process, and the corners of step().
#include <gtest/gtest.h>

#include <mutex>

#include <trireme/trireme.h>

#include "ranks.h"

namespace trireme {
namespace {

using torch::nn::Sequential;

torch::Tensor loss_of(Sequential& net, const data::Batch& batch) {
  return torch::cross_entropy_loss(net->forward(batch.x), batch.y);
}

/// Ranks are threads here and share libtorch's random numbers: one at a time.
std::mutex random_numbers;

Sequential small_net(torch::ScalarType type) {
  const std::lock_guard lock(random_numbers);
  torch::manual_seed(7);
  auto net = models::mlp({784, 13, 10});
  net->to(type);
  return net;
}

constexpr const char* kData = "synthetic:101";  // 101 samples in batches of 16: the last batch has 5
constexpr size_t kBatch = 16;
constexpr int kSteps = 50;

struct Trace {
  std::vector<torch::Tensor> parameters;
  std::vector<double> losses;
};

/// The reference: no Trireme but for the order of the samples.
Trace train_alone(Sequential net, torch::ScalarType type) {
  Trace trace;
  test::run_ranks(1, [&](World& world) {
    const auto sets = data::open(world.local(), kData);
    torch::optim::SGD optimizer(net->parameters(), torch::optim::SGDOptions(0.1).momentum(0.9));
    for (int64_t epoch = 0; trace.losses.size() < kSteps; epoch++) {
      const auto order = data::epoch_order(sets.train.count, 1, epoch, true);
      for (size_t begin = 0; begin < order.size() && trace.losses.size() < kSteps; begin += kBatch) {
        const auto batch = data::make_batch(sets.train, order, begin, std::min(order.size(), begin + kBatch), type);
        optimizer.zero_grad();
        const auto loss = loss_of(net, batch);
        loss.backward();
        optimizer.step();
        trace.losses.push_back(loss.item<double>());
      }
    }
  });
  for (const auto& p : net->parameters()) trace.parameters.push_back(p.detach().clone());
  return trace;
}

Trace train_together(int ranks, const std::function<Sequential()>& make, torch::ScalarType type,
                     const ParallelOptions& options) {
  Trace trace;
  test::run_ranks(ranks, [&](World& world) {
    const auto sets = data::open(world.local(), kData);
    const data::Loader loader(sets.train, world.rank(), ranks,
                              {.batch = kBatch, .accumulate = options.accumulate, .seed = 1, .dtype = type});
    auto net = make();
    if (!world.first())
      for (auto& p : net->parameters()) p.data().zero_();  // only rank 0's initial parameters count
    auto train = parallel(world, *net, momentum({.lr = 0.1, .momentum = 0.9}), options);
    int64_t done = 0;
    std::vector<double> losses;
    for (int64_t e = 0; done < kSteps; e++) {
      auto epoch = loader.epoch(e);
      for (auto& batch : epoch) {
        const Step step = train.step(batch, [&] { return loss_of(net, batch); });
        done = step.number;
        if (step.updated) losses.push_back(step.loss);
        if (done == kSteps) break;
      }
    }
    if (world.rank() != ranks - 1) return;  // the last rank's view: it must be the same as the first's
    trace.losses = losses;
    for (const auto& p : net->parameters()) trace.parameters.push_back(p.detach().clone());
  });
  return trace;
}

double distance(const Trace& a, const Trace& b) {
  double most = 0;
  for (size_t i = 0; i < a.parameters.size(); i++)
    most = std::max(most, (a.parameters[i] - b.parameters[i]).abs().max().item<double>());
  return most;
}

class Parity : public testing::TestWithParam<std::tuple<int, int, Sync>> {};

TEST_P(Parity, EqualsOneProcess) {
  const auto [ranks, accumulate, sync] = GetParam();
  const auto make = [] { return small_net(torch::kFloat64); };
  const Trace alone = train_alone(make(), torch::kFloat64);
  // 16 samples over 4 ranks leave no room for 5 micro-batches: accumulate is at most 4.
  const Trace together = train_together(ranks, make, torch::kFloat64,
                                        {.exchange = {.sync = sync, .bucket_bytes = 4096}, .accumulate = accumulate});
  ASSERT_EQ(together.losses.size(), alone.losses.size());
  EXPECT_LT(distance(alone, together), 1e-9);
  for (size_t i = 0; i < alone.losses.size(); i++) EXPECT_NEAR(alone.losses[i], together.losses[i], 1e-9);
}

INSTANTIATE_TEST_SUITE_P(Modes, Parity,
                         testing::Combine(testing::Values(1, 2, 3, 4), testing::Values(1, 3),
                                          testing::Values(Sync::shared, Sync::allreduce, Sync::central)),
                         [](const auto& info) {
                           return exchange::name_of(std::get<2>(info.param)) + "_" +
                                  std::to_string(std::get<0>(info.param)) + "ranks_accumulate" +
                                  std::to_string(std::get<1>(info.param));
                         });

TEST(Parallel, LeNetInSinglePrecisionFollowsOneProcess) {
  const auto make = [] {
    const std::lock_guard lock(random_numbers);
    torch::manual_seed(7);
    return models::lenet();
  };
  const Trace alone = train_alone(make(), torch::kFloat32);
  for (bool channels_last : {false, true}) {
    const Trace together = train_together(2, make, torch::kFloat32, {.channels_last = channels_last});
    for (size_t i = 0; i < alone.losses.size(); i++)
      EXPECT_NEAR(together.losses[i] / alone.losses[i], 1, 1e-4) << "step " << i;
  }
}

TEST(Parallel, SameSeedSameBits) {
  const auto sha = [](uint64_t seed) {
    std::string result;
    test::run_ranks(3, [&](World& world) {
      auto net = models::mlp({784, 13, 10});
      const auto sets = data::open(world.local(), kData);
      const data::Loader loader(sets.train, world.rank(), 3, {.batch = kBatch, .seed = seed});
      world.comm().barrier("init");
      if (world.first()) {
        const torch::NoGradGuard no_grad;
        for (auto& p : net->parameters())
          p.copy_(torch::arange(p.numel()).remainder(17).sub(8).div(100).view(p.sizes()));
      }
      auto train = parallel(world, *net, adam({.lr = 0.01}));
      auto epoch = loader.epoch(0);
      for (auto& batch : epoch) train.step(batch, [&] { return loss_of(net, batch); });
      const std::string mine = train.sha256();
      if (world.rank() == 1) result = mine;
    });
    return result;
  };
  const std::string first = sha(1);
  EXPECT_EQ(first.size(), 64u);
  EXPECT_EQ(first, sha(1));
  EXPECT_NE(first, sha(2));
}

/// Two branches; `which` picks the one that a rank uses.
struct Branches : torch::nn::Module {
  torch::nn::Linear a{register_module("a", torch::nn::Linear(3, 1))}, b{register_module("b", torch::nn::Linear(3, 1))},
      never{register_module("never", torch::nn::Linear(3, 1))};
  Branches() { to(torch::kFloat64); }
};

TEST(Parallel, UnusedParametersAreNormal) {
  for (const Sync sync : {Sync::shared, Sync::allreduce, Sync::central})
    test::run_ranks(2, [&](World& world) {
      Branches net;
      auto train = parallel(world, net, sgd({.lr = 0.5, .weight_decay = 0.1}), {.sync = sync, .bucket_bytes = 1});
      const auto a = net.a->weight.detach().clone(), b = net.b->weight.detach().clone(),
                 never = net.never->weight.detach().clone();
      const auto x = torch::ones({1, 3}, torch::kFloat64);
      world.comm().barrier("looked");
      train.step([&] { return (world.rank() == 0 ? net.a : net.b)->forward(x).sum(); });
      // Each weight has gradient 1 on one rank of two, weighted with 1/2; weight decay applies to what has a gradient,
      // and not to `never`.
      EXPECT_TRUE(torch::allclose(net.a->weight, a - 0.5 * (0.5 + 0.1 * a), 0, 1e-12));
      EXPECT_TRUE(torch::allclose(net.b->weight, b - 0.5 * (0.5 + 0.1 * b), 0, 1e-12));
      EXPECT_TRUE(torch::equal(net.never->weight, never));
    });
}

TEST(Parallel, FrozenAndTiedParameters) {
  struct Tied : torch::nn::Module {
    torch::nn::Linear one{register_module("one", torch::nn::Linear(torch::nn::LinearOptions(4, 4).bias(false)))};
    torch::Tensor again, frozen;
    Tied() {
      again = register_parameter("again", one->weight);
      frozen = register_parameter("frozen", torch::ones({4}), false);
    }
  };
  test::run_ranks(2, [](World& world) {
    Tied net;
    auto train = parallel(world, net, sgd({.lr = 0.1}));
    EXPECT_EQ(train.exchange().flat().layout().size(), 2u);
    const auto before = net.one->weight.detach().clone();
    world.comm().barrier("looked");
    train.step([&] { return (net.one->weight.sum() + net.again.sum()) * net.frozen.mean(); });
    EXPECT_TRUE(torch::allclose(net.one->weight, before - 0.2));  // both uses count
    EXPECT_TRUE(torch::equal(net.frozen, torch::ones({4})));
  });
}

TEST(Parallel, BuffersAreAveragedWhereLookedAt) {
  test::run_ranks(2, [](World& world) {
    Sequential net(torch::nn::BatchNorm1d(2), torch::nn::Linear(2, 1));
    auto train = parallel(world, *net, sgd({.lr = 0.0}));
    train.step([&] { return net->forward(torch::full({4, 2}, world.rank() == 0 ? 1.0 : 3.0)).sum(); });
    const auto& mean = net->named_buffers()["0.running_mean"];
    EXPECT_NEAR(mean[0].item<double>(), world.rank() == 0 ? 0.1 : 0.3, 1e-6);  // each rank's own, while training
    train.settled([&] {
      EXPECT_NEAR(mean[0].item<double>(), 0.2, 1e-6);
      EXPECT_EQ(net->named_buffers()["0.num_batches_tracked"].item<int64_t>(), 1);
    });
  });
}

TEST(Parallel, UsersOwnOptimizerSeesTheMeanGradient) {
  test::run_ranks(3, [](World& world) {
    auto net = small_net(torch::kFloat64);
    auto train = parallel(world, *net);
    torch::optim::Adagrad optimizer(net->parameters(), torch::optim::AdagradOptions(0.1));
    const auto before = net->parameters()[3].detach().clone();
    train.step([&] { return net->forward(torch::ones({1, 784}, torch::kFloat64)).sum() * (world.rank() + 1.0); });
    EXPECT_TRUE(
        torch::allclose(net->parameters()[3].grad(), torch::full({10}, 2.0, torch::kFloat64)));  // mean of 1, 2, 3
    optimizer.step();
    EXPECT_TRUE(torch::allclose(net->parameters()[3], before - 0.1));  // Adagrad's first step
  });
}

TEST(Parallel, DifferentModelsAreRefused) {
  try {
    test::run_ranks(2, [](World& world) {
      auto net = models::mlp({4, world.rank() == 0 ? 8 : 9, 2});
      auto train = parallel(world, *net, sgd());
    });
    FAIL() << "no error";
  } catch (const Mismatch& error) {
    EXPECT_NE(std::string(error.what()).find("1.weight f32[8,4]"), std::string::npos) << error.what();
    EXPECT_NE(std::string(error.what()).find("1.weight f32[9,4]"), std::string::npos) << error.what();
  }
}

TEST(Parallel, RanksThatDoDifferentThingsAreToldSo) {
  EXPECT_THROW(test::run_ranks(2,
                               [](World& world) {
                                 auto net = models::linear(2, 1);
                                 auto train = parallel(world, *net, sgd());
                                 if (world.first())
                                   train.step([&] { return net->forward(torch::ones({1, 2})).sum(); });
                                 else
                                   train.sha256(), world.comm().barrier("elsewhere");
                               }),
               Mismatch);
}

TEST(Parallel, ErrorInTheLossReachesTheCallerAndThePeer) {
  std::atomic<int> lost{0};
  EXPECT_THROW(test::run_ranks(2,
                               [&](World& world) {
                                 auto net = models::linear(2, 1);
                                 auto train = parallel(world, *net, sgd());
                                 try {
                                   train.step([&]() -> torch::Tensor {
                                     if (world.first()) throw std::logic_error("bad batch");
                                     return net->forward(torch::ones({1, 2})).sum();
                                   });
                                 } catch (const PeerLost&) {
                                   lost++;
                                   throw;
                                 }
                               }),
               std::logic_error);
  EXPECT_EQ(lost, 1);
}

TEST(Parallel, ModuleOutlivesIt) {
  auto net = models::linear(3, 1);
  test::run_ranks(1, [&](World& world) {
    auto train = parallel(world, *net, sgd({.lr = 0.1}));
    train.step([&] { return net->forward(torch::ones({1, 3})).sum(); });
  });
  EXPECT_TRUE(std::isfinite(net->forward(torch::ones({1, 3})).item<double>()));  // the shared memory is gone
  net->forward(torch::ones({1, 3})).sum().backward();
  EXPECT_TRUE(net->parameters()[0].grad().defined());
}

TEST(Parallel, ExclusiveWritesOnceForAll) {
  for (const Sync sync : {Sync::shared, Sync::allreduce}) {
    std::atomic<int> calls{0};
    test::run_ranks(2, [&](World& world) {
      auto net = models::linear(2, 1);
      auto train = parallel(world, *net, sgd(), {.sync = sync});
      train.exclusive([&] { net->parameters()[0].fill_(5), calls++; });
      EXPECT_TRUE(torch::equal(net->parameters()[0].detach(), torch::full({1, 2}, 5.0)));
      world.comm().barrier("looked");
    });
    EXPECT_EQ(calls, sync == Sync::shared ? 1 : 2);
  }
}

TEST(Parallel, StopReachesAllRanksAtTheSameUpdate) {
  test::run_ranks(3, [](World& world) {
    auto net = models::linear(2, 1);
    auto train = parallel(world, *net, sgd());
    Step step;
    for (int i = 0; i < 10 && !step.stop; i++) {
      if (i == 4 && world.rank() == 2) train.request_stop();
      step = train.step([&] { return net->forward(torch::ones({1, 2})).sum(); });
    }
    EXPECT_EQ(step.number, 5);
  });
}

/// A graph that changes from step to step: gradients are born in memory that the last pass used for something else.
TEST(Parallel, GraphsMayChangeBetweenSteps) {
  struct Net : torch::nn::Module {
    std::vector<torch::nn::Linear> layers;
    Net() {
      for (int i = 0; i < 3; i++)
        layers.push_back(
            register_module("l" + std::to_string(i), torch::nn::Linear(torch::nn::LinearOptions(96, 96).bias(false))));
      to(torch::kFloat64);
    }
    torch::Tensor forward(torch::Tensor x, int shape) {
      const std::vector<std::vector<int>> orders = {{0, 1, 2}, {2, 0}, {1, 1, 0}, {0, 2, 1}, {2}};
      for (int layer : orders[static_cast<size_t>(shape)]) x = torch::tanh(layers[static_cast<size_t>(layer)](x));
      return x.pow(2).mean();
    }
  };
  const auto x = [](int step) {
    return torch::sin(torch::arange(96 * 96, torch::kFloat64).view({96, 96}) * (step + 1));
  };
  const auto fill = [](Net& net) {
    const torch::NoGradGuard no_grad;
    for (size_t i = 0; i < 3; i++)
      net.layers[i]->weight.copy_(torch::cos(torch::arange(96 * 96, torch::kFloat64) * (i + 1.0)).view({96, 96}) / 10);
  };
  Net alone;
  fill(alone);
  torch::optim::SGD optimizer(alone.parameters(), torch::optim::SGDOptions(0.5));
  const auto shape = [](int step) { return (step * 7 + step / 3) % 5; };
  for (int step = 0; step < 40; step++) {
    optimizer.zero_grad();
    for (auto& p : alone.parameters()) p.mutable_grad().reset();  // a layer that is not used has no gradient
    alone.forward(x(step), shape(step)).backward();
    optimizer.step();
  }
  test::run_ranks(2, [&](World& world) {
    Net net;
    fill(net);
    auto train = parallel(world, net, sgd({.lr = 0.5}));
    for (int step = 0; step < 40; step++) train.step([&] { return net.forward(x(step), shape(step)); });
    for (size_t i = 0; i < 3; i++)
      EXPECT_TRUE(torch::allclose(net.layers[i]->weight, alone.layers[i]->weight, 0, 1e-10)) << i;
    world.comm().barrier("looked");
  });
}

TEST(Parallel, RefusesWhatItCannotTrain) {
  test::run_ranks(1, [](World& world) {
    auto half = models::linear(2, 1);
    half->to(torch::kFloat16);
    EXPECT_THROW(parallel(world, *half, sgd()), InvalidArgument);
    auto net = models::linear(2, 1);
    EXPECT_THROW(parallel(world, *net, sgd({.lr = -1})), InvalidArgument);
    EXPECT_THROW(parallel(world, *net, {.sync = Sync::shared}), InvalidArgument);
    Sequential empty;
    EXPECT_THROW(parallel(world, *empty, sgd()), InvalidArgument);
  });
}

}  // namespace
}  // namespace trireme
