// label: unit
// Virtual workers: any number of ranks ends with the same SHA-256, and says the same losses on the way.
#include <gtest/gtest.h>

#include <filesystem>
#include <mutex>

#include <trireme/trireme.h>

#include "ranks.h"

namespace trireme {
namespace {

namespace fs = std::filesystem;

/// A layer of its own for some samples: pieces without those have no gradient for it.
struct Net : torch::nn::Module {
  torch::nn::Linear first = register_module("first", torch::nn::Linear(784, 24));
  torch::nn::Linear rare = register_module("rare", torch::nn::Linear(24, 24));
  torch::nn::Linear last = register_module("last", torch::nn::Linear(24, 10));

  torch::Tensor loss(const data::Batch& batch) {
    torch::Tensor x = torch::relu(first(batch.x.flatten(1)));
    if (batch.y.eq(3).any().item<bool>()) x = torch::relu(rare(x));
    return torch::nn::functional::cross_entropy(last(x), batch.y);
  }
};

struct Ended {
  std::string sha256;
  std::vector<double> losses;
  bool operator==(const Ended&) const = default;
};

struct Plan {
  int pieces = 4;
  double clip = 0;
  std::string dir{};           // of a checkpoint
  int64_t begin = 0, end = 3;  // epochs
};

/// 100 samples in batches of 16: the last step has four, and with eight pieces some of them are empty.
Ended train(int ranks, const Plan& plan) {
  Ended ended;
  std::mutex mutex;
  test::run_ranks(ranks, [&](World& world) {
    const auto sets = data::open(world.local(), "synthetic:100");
    torch::manual_seed(5);
    Net net;
    if (world.first())
      for (torch::Tensor& parameter : net.parameters())
        torch::NoGradGuard(),
            parameter.set_data(
                torch::arange(parameter.numel(), torch::kFloat32).mul(0.7).sin().mul(0.2).reshape(parameter.sizes()));
    auto train = parallel(world, net, adam({.lr = 0.01}),
                          {.exchange = {.bucket_bytes = 4096, .clip = plan.clip, .virtual_workers = plan.pieces}});
    data::Feed feed(train, sets.train, {.batch = 16, .seed = 3});
    if (plan.begin > 0) train.load_state(plan.dir);
    std::vector<double> losses;
    size_t unforeseen = 0;
    for (int64_t epoch = plan.begin; epoch < plan.end; epoch++) {
      data::Epoch batches = feed.epoch(epoch);
      for (auto& batch : batches) {
        const Step step = train.step(batch, [&] { return net.loss(batch); });
        if (step.updated) losses.push_back(step.loss);
      }
      unforeseen += batches.unforeseen();
    }
    EXPECT_EQ(unforeseen, 0u) << "what a rank gets is certain, and is prepared";
    if (plan.begin == 0 && !plan.dir.empty()) train.save_state(plan.dir);
    const std::string sha256 = train.sha256();
    const std::lock_guard lock(mutex);
    if (ended.sha256.empty()) ended = {sha256, losses};
    EXPECT_EQ(ended, (Ended{sha256, losses}));
  });
  return ended;
}

TEST(VirtualWorkers, AnyNumberOfRanksEndsWithTheSameBits) {
  for (const int pieces : {4, 7, 8}) {
    const Ended alone = train(1, {.pieces = pieces});
    EXPECT_EQ(alone.losses.size(), 21u);
    EXPECT_LT(alone.losses.back(), alone.losses.front());
    for (const int ranks : {2, 3, 4}) EXPECT_EQ(train(ranks, {.pieces = pieces}), alone) << ranks << " ranks";
  }
}

TEST(VirtualWorkers, ClippedToo) {
  const Ended alone = train(1, {.clip = 0.1, .end = 2});
  EXPECT_NE(alone.sha256, train(1, {.end = 2}).sha256);
  for (const int ranks : {2, 3, 4}) EXPECT_EQ(train(ranks, {.clip = 0.1, .end = 2}), alone) << ranks << " ranks";
}

TEST(VirtualWorkers, OtherNumbersOfThemAreOtherBits) {
  EXPECT_NE(train(2, {.pieces = 4}).sha256, train(2, {.pieces = 5}).sha256);
}

TEST(VirtualWorkers, AnotherCrewGoesOnWithTheSameBits) {
  const Ended whole = train(1, {});
  const std::string dir = fs::temp_directory_path() / test::job_name();
  const Ended before = train(2, {.dir = dir, .end = 1});
  const Ended after = train(3, {.dir = dir, .begin = 1});
  fs::remove_all(dir);
  EXPECT_EQ(after.sha256, whole.sha256);
  EXPECT_EQ(before.losses, std::vector<double>(whole.losses.begin(), whole.losses.begin() + 7));
  EXPECT_EQ(after.losses, std::vector<double>(whole.losses.begin() + 7, whole.losses.end()));
}

/// Calls of step() without a feed.
TEST(VirtualWorkers, AnUpdateTakesAsManyCallsAsARankHasPieces) {
  test::run_ranks(3, [&](World& world) {
    torch::nn::Linear net(4, 1);
    auto train = parallel(world, *net, sgd(), {.exchange = {.virtual_workers = 8}});
    const exchange::Pieces run = train.exchange().virtual_workers()->runs()[static_cast<size_t>(world.rank())];
    for (int update = 1; update <= 2; update++)
      for (int call = 1; call <= run.size(); call++) {
        const Step step = train.step([&] { return net(torch::ones({2, 4})).mean(); });
        EXPECT_EQ(step.updated, call == run.size());
        EXPECT_EQ(step.number, step.updated ? update : update - 1);
      }
    train.settled([] {});
  });
}

/// Of the forward pass: a piece's own, so that ranks in processes of their own draw the same.
TEST(VirtualWorkers, RandomNumbersAreThePieces) {
  std::vector<double> drawn;
  for (int run = 0; run < 2; run++)
    test::run_ranks(1, [&](World& world) {
      torch::manual_seed(run);
      torch::nn::Linear net(1, 1);
      auto train = parallel(world, *net, sgd(), {.exchange = {.virtual_workers = 3}});
      for (int call = 0; call < 6; call++)
        train.step([&] {
          drawn.push_back(torch::rand({1}, torch::kFloat64).item<double>());
          return net(torch::ones({1, 1})).mean();
        });
    });
  ASSERT_EQ(drawn.size(), 12u);
  for (size_t i = 0; i < 6; i++) {
    EXPECT_EQ(drawn[i], drawn[i + 6]);
    for (size_t k = 0; k < i; k++) EXPECT_NE(drawn[i], drawn[k]);
  }
}

std::string refusal(torch::nn::Module& net, const ParallelOptions& options,
                    const std::function<torch::Tensor()>& loss = {}) {
  std::string why;
  test::run_ranks(1, [&](World& world) {
    try {
      auto train = parallel(world, net, sgd(), options);
      if (loss) train.step(loss);
    } catch (const InvalidArgument& error) {
      why = error.what();
    }
  });
  return why;
}

struct Counting : torch::nn::Module {
  torch::Tensor weight = register_parameter("weight", torch::ones({2}));
  torch::Tensor seen = register_buffer("seen", torch::zeros({1}));
};

TEST(VirtualWorkers, WhatDependsOnTheCrewIsRefused) {
  torch::nn::Linear linear(2, 2);
  torch::nn::Sequential norm(torch::nn::Linear(2, 2), torch::nn::BatchNorm1d(2));
  EXPECT_NE(refusal(*norm, {.exchange = {.virtual_workers = 2}}).find("1.running_mean"), std::string::npos);
  EXPECT_NE(refusal(*linear, {.exchange = {.virtual_workers = 2}, .accumulate = 2}).find("virtual 4"),
            std::string::npos);
  EXPECT_NE(refusal(*linear, {.exchange = {.virtual_workers = 2}, .sync_batch_norm = true}).find("sync_batch_norm"),
            std::string::npos);
  EXPECT_NE(refusal(*linear, {.exchange = {.sync = Sync::central, .virtual_workers = 2}}).find("sync 'central'"),
            std::string::npos);
  Counting counting;
  const std::string changed = refusal(counting, {.exchange = {.virtual_workers = 2}}, [&] {
    const torch::NoGradGuard no_grad;
    counting.seen.add_(1);
    return counting.weight.sum();
  });
  EXPECT_NE(changed.find("'seen'"), std::string::npos) << changed;
}

}  // namespace
}  // namespace trireme
