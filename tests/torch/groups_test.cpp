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

void train_part(const Group& group, int part, const ParallelOptions& options) {
  auto net = net_of(part);
  const auto [x, y] = samples_of(part);
  const auto mine = x.narrow(0, 6 * group.rank(), 6), wanted = y.narrow(0, 6 * group.rank(), 6);
  {
    auto train = parallel(group, *net, momentum({.lr = 0.02, .momentum = 0.9}), options);
    for (int step = 0; step < kSteps; step++) train.step([&] { return torch::mse_loss(net->forward(mine), wanted); });
  }
  const auto reference = train_alone(part);
  for (size_t i = 0; i < reference.size(); i++)
    EXPECT_LT((net->parameters()[i] - reference[i]).abs().max().item<double>(), 1e-12) << "part " << part;
}

TEST(Groups, EachTrainsItsOwnModel) {
  for (const char* mode : {"shared", "allreduce", "central"})
    test::run_ranks(4, [&](World& world) {
      train_part(world.split(world.rank() % 2), world.rank() % 2, {.exchange = {.sync = exchange::sync_named(mode)}});
    });
}

TEST(Groups, AnAxisOfAMeshTrainsTogether) {
  test::run_ranks(4, [&](World& world) {
    const Mesh mesh = world.mesh({{"data", 2}, {"tensor", 2}});
    train_part(mesh.group("data"), mesh.coordinate("tensor"), {.exchange = {.bucket_bytes = 64}, .overlap_next = true});
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
