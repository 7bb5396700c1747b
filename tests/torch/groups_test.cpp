// label: unit
// Models that parts of a world train, each against a plain libtorch loop on its group's samples.
#include <gtest/gtest.h>

#include <mutex>

#include <trireme/trireme.h>

#include "ranks.h"

namespace trireme {
namespace {

using torch::nn::Linear;
using torch::nn::Sequential;

std::mutex random_numbers;  // ranks are threads here, and libtorch's are the process's

/// Another size for each part of the world: what they train need not be alike.
Sequential net_of(int part) {
  const std::lock_guard lock(random_numbers);
  torch::manual_seed(part);
  Sequential net(Linear(5, 4 + part), torch::nn::Tanh(), Linear(4 + part, 1));
  net->to(torch::kFloat64);
  return net;
}

/// What the group of that part trains on, of which each of two ranks has half.
std::pair<torch::Tensor, torch::Tensor> samples_of(int part) {
  const std::lock_guard lock(random_numbers);
  torch::manual_seed(100 + part);
  const auto x = torch::randn({12, 5}, torch::kFloat64);
  return {x, x.sum(1, true) * (part + 1)};
}

constexpr int kSteps = 30;

std::vector<torch::Tensor> train_alone(int part) {
  auto net = net_of(part);
  const auto [x, y] = samples_of(part);
  torch::optim::SGD optimizer(net->parameters(), torch::optim::SGDOptions(0.02).momentum(0.9));
  for (int step = 0; step < kSteps; step++) {
    optimizer.zero_grad();
    torch::mse_loss(net->forward(x), y).backward();
    optimizer.step();
  }
  return net->parameters();
}

void train_part(const Group& group, int part, const ParallelOptions& options,
                const std::vector<torch::Tensor>& reference) {
  auto net = net_of(part);
  const auto [x, y] = samples_of(part);
  const auto mine = x.narrow(0, 6 * group.rank(), 6), wanted = y.narrow(0, 6 * group.rank(), 6);
  {
    auto train = parallel(group, *net, momentum({.lr = 0.02, .momentum = 0.9}), options);
    for (int step = 0; step < kSteps; step++) train.step([&] { return torch::mse_loss(net->forward(mine), wanted); });
  }
  for (size_t i = 0; i < reference.size(); i++)
    EXPECT_LT((net->parameters()[i] - reference[i]).abs().max().item<double>(), 1e-12) << "part " << part;
}

TEST(Groups, EachTrainsItsOwnModel) {
  for (const char* mode : {"shared", "allreduce", "central"})
    test::run_ranks(4, [&](World& world) {
      const int part = world.rank() % 2;
      train_part(world.split(part), part, {.exchange = {.sync = exchange::sync_named(mode)}}, train_alone(part));
    });
}

constexpr int kPeriod = 3;

/// Two replicas, each with half of the samples and an optimizer of its own, that meet every few steps: for the mean, or
/// for a step of Nesterov's with what they have moved by on average.
std::vector<torch::Tensor> train_apart(int part, const exchange::Sync& sync) {
  const auto [x, y] = samples_of(part);
  std::vector<Sequential> nets = {net_of(part), net_of(part)};
  std::vector<torch::optim::SGD> optimizers;
  for (auto& net : nets) optimizers.emplace_back(net->parameters(), torch::optim::SGDOptions(0.02).momentum(0.9));
  const torch::NoGradGuard values;
  std::vector<torch::Tensor> agreed, velocity;
  for (const auto& parameter : nets[0]->parameters()) {
    agreed.push_back(parameter.clone());
    velocity.push_back(torch::zeros_like(parameter));
  }
  for (int step = 1; step <= kSteps; step++) {
    for (int rank = 0; rank < 2; rank++) {
      const torch::AutoGradMode gradients(true);
      optimizers[static_cast<size_t>(rank)].zero_grad();
      torch::mse_loss(nets[static_cast<size_t>(rank)]->forward(x.narrow(0, 6 * rank, 6)), y.narrow(0, 6 * rank, 6))
          .backward();
      optimizers[static_cast<size_t>(rank)].step();
    }
    if (step % kPeriod != 0) continue;
    for (size_t i = 0; i < agreed.size(); i++) {
      const auto mean = (nets[0]->parameters()[i] + nets[1]->parameters()[i]) / 2;
      velocity[i] = sync.outer_momentum * velocity[i] + (agreed[i] - mean);
      agreed[i] = sync.kind == exchange::Sync::local
                      ? mean
                      : agreed[i] - sync.outer_rate * (agreed[i] - mean + sync.outer_momentum * velocity[i]);
      for (auto& net : nets) net->parameters()[i].copy_(agreed[i]);
    }
  }
  return agreed;
}

TEST(Groups, EachTrainsItsOwnModelAndMeetsNowAndThen) {
  for (const exchange::Sync& sync : {exchange::Sync::local_for(kPeriod), exchange::Sync::diloco_for(kPeriod)})
    test::run_ranks(4, [&](World& world) {
      const int part = world.rank() % 2;
      train_part(world.split(part), part, {.exchange = {.sync = sync}}, train_apart(part, sync));
    });
}

/// Without a lock no two runs are the same: each group comes near to its own function, and has one copy.
TEST(Groups, EachTrainsItsOwnModelWithoutALock) {
  test::run_ranks(4, [&](World& world) {
    const int part = world.rank() % 2;
    const Group group = world.split(part);
    auto net = net_of(part);
    const auto [x, y] = samples_of(part);
    const auto mine = x.narrow(0, 6 * group.rank(), 6), wanted = y.narrow(0, 6 * group.rank(), 6);
    const auto loss = [&] { return torch::mse_loss(net->forward(x), y).item<double>(); };
    const double before = loss();
    auto train = parallel(group, *net, sgd({.lr = 0.05}), {.sync = exchange::Sync::hogwild});
    for (int step = 0; step < 200; step++) train.step([&] { return torch::mse_loss(net->forward(mine), wanted); });
    train.settled([&] { EXPECT_LT(loss(), 0.5 * before) << "part " << part; });
    const double sum = net->parameters()[0].sum().item<double>();
    std::vector<double> sums(2);
    group.comm().all_gather(&sum, sums.data(), 1, DType::f64, "sums");
    EXPECT_EQ(sums[0], sums[1]);
  });
}

TEST(Groups, AnAxisOfAMeshTrainsTogether) {
  test::run_ranks(4, [&](World& world) {
    const Mesh mesh = world.mesh({{"data", 2}, {"tensor", 2}});
    const int part = mesh.coordinate("tensor");
    train_part(mesh.group("data"), part, {.exchange = {.bucket_bytes = 64}, .overlap_next = true}, train_alone(part));
    world.comm().barrier("the world is of use, too");
  });
}

TEST(Groups, TheWorldAndAPartOfItTrainByTurns) {
  test::run_ranks(2, [&](World& world) {
    const Group both = world.split(0), alone = world.split(world.rank());
    auto one = net_of(1), two = net_of(2);
    auto train_one = parallel(world, *one, sgd({.lr = 0.1}));
    auto train_two = parallel(alone, *two, sgd({.lr = 0.1}));
    const auto x = torch::ones({3, 5}, torch::kFloat64) * (world.rank() + 1);
    for (int step = 0; step < 3; step++) {
      train_one.step([&] { return one->forward(x).mean(); });
      train_two.step([&] { return two->forward(x).mean(); });
    }
    EXPECT_EQ(train_one.sha256().size(), 64u);
    EXPECT_EQ(train_two.sha256().size(), 64u);
    both.comm().barrier("done");
  });
}

/// What lies in memory that only a part of the world has mapped so far.
TEST(Groups, TheWorldReducesWhatPartsOfItHave) {
  test::run_ranks(3, [&](World& world) {
    const Group alone = world.split(world.rank());
    auto net = net_of(1);
    auto train = parallel(alone, *net, sgd({.lr = 0.1}));
    auto* const mine = reinterpret_cast<double*>(train.exchange().flat().gradients());
    mine[0] = 1 + world.rank();
    std::vector<double> all(3);
    world.comm().all_gather(mine, all.data(), 1, DType::f64, "numbers");
    EXPECT_EQ(all, (std::vector<double>{1, 2, 3}));
    world.comm().allreduce(mine, 1, DType::f64, Op::sum, "numbers");
    EXPECT_EQ(mine[0], 6);
    world.comm().barrier("looked");
  });
}

TEST(Groups, ModelsNeedToAgreeWithinAGroup) {
  EXPECT_THROW(test::run_ranks(4,
                               [](World& world) {
                                 const Group pair = world.split(world.rank() / 2);
                                 auto net = net_of(world.rank());
                                 auto train = parallel(pair, *net, sgd({.lr = 0.1}));
                               }),
               Mismatch);
}

TEST(Groups, ServersServeTheWholeWorldOnly) {
  test::run_job(2, 1, [](World& world) {
    auto net = net_of(0);
    const Group pair = world.split(0);
    try {
      auto train = parallel(pair, *net, sgd({.lr = 0.1}), {.sync = Sync::async});
      ADD_FAILURE() << "taken";
    } catch (const InvalidArgument& error) {
      EXPECT_NE(std::string(error.what()).find("give parallel() the World, and not ranks 0, 1 of epoch 0"),
                std::string::npos)
          << error.what();
    }
    auto train = parallel(world, *net, sgd({.lr = 0.1}), {.sync = Sync::async});
  });
}

}  // namespace
}  // namespace trireme
