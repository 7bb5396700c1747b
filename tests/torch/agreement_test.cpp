// label: unit
// Ranks that were asked for different things find out, and hear what it is.
#include <gtest/gtest.h>

#include <mutex>

#include <trireme/train/trainer.h>
#include <trireme/trireme.h>

#include "ranks.h"

namespace trireme {
namespace {

using Words = std::vector<std::string>;

/// Runs a job in which every rank must get a Mismatch with these words.
void expect_mismatch(int ranks, int servers, const Words& words, const std::function<void(World&)>& body) {
  std::mutex mutex;
  std::vector<std::string> texts;
  try {
    test::run_job(ranks, servers, [&](World& world) {
      try {
        body(world);
      } catch (const Mismatch& error) {
        const std::lock_guard lock(mutex);
        texts.emplace_back(error.what());
      }
    });
  } catch (const std::exception& error) {
    if (servers == 0)
      ADD_FAILURE() << error.what();  // servers wait in vain for workers that were refused before they came
  }
  EXPECT_EQ(texts.size(), static_cast<size_t>(ranks)) << "not everybody heard of '" << words[0] << "'";
  for (const std::string& text : texts)
    for (const std::string& word : words)
      EXPECT_NE(text.find(word), std::string::npos) << '\'' << word << "' is not in: " << text;
}

struct Case {
  Words words;
  ParallelOptions other;  // of rank 1
  ParallelOptions first{};
};

TEST(Agreement, SettingsOfTheTraining) {
  const auto net_of = [] { return models::mlp({4, 3, 2}); };
  const auto diloco = [](double rate, double momentum) {
    Sync sync = Sync::diloco_for(3);
    sync.outer_rate = rate, sync.outer_momentum = momentum;
    return ParallelOptions{.exchange = {.sync = sync}};
  };
  const Case cases[] = {
      {{"settings differ", "sync: ", "rank 0 has 'shared', rank 1 has 'allreduce'"},
       {.exchange = {.sync = Sync::allreduce}}},
      {{"sync: ", "rank 1 has 'hogwild'"}, {.exchange = {.sync = Sync::hogwild}}},
      {{"sync: ", "rank 1 has 'local:3'"}, {.exchange = {.sync = exchange::Sync::local_for(3)}}},
      {{"sync: ", "rank 1 has 'async'"}, {.exchange = {.sync = Sync::async}}},
      {{"accumulate: rank 0 has '1', rank 1 has '2'"}, {.accumulate = 2}},
      {{"schedule: rank 0 has 'constant', rank 1 has 'cosine'"},
       {.schedule = {.kind = RateSchedule::cosine, .total = 10}}},
      {{"warmup: rank 0 has '0', rank 1 has '5'"}, {.schedule = {.warmup = 5}}},
      {{"bucket_bytes: rank 0 has '1048576', rank 1 has '1000'"}, {.exchange = {.bucket_bytes = 1000}}},
      {{"clip: rank 0 has '0', rank 1 has '1.5'"}, {.exchange = {.clip = 1.5}}},
      {{"outer_rate: rank 0 has '0.7', rank 1 has '0.5'"}, diloco(0.5, 0.9), diloco(0.7, 0.9)},
      {{"outer_momentum: rank 0 has '0.9', rank 1 has '0.8'"}, diloco(0.7, 0.8), diloco(0.7, 0.9)},
  };
  for (const Case& c : cases)
    expect_mismatch(2, 0, c.words, [&](World& world) {
      auto net = net_of();
      auto train = parallel(world, *net, sgd(), world.rank() == 1 ? c.other : c.first);
    });
}

TEST(Agreement, TheSameSettingOfEveryMode) {
  for (const char* sync : {"shared", "allreduce", "central", "hogwild", "local:2", "diloco:2", "server", "async",
                           "stale:2", "trylock:1", "round-robin", "elastic:2,0.5"})
    expect_mismatch(3, 0, {"learning rate: rank 0 has '0.1', rank 2 has '0.2'"}, [&](World& world) {
      auto net = models::linear(2, 1);
      auto train =
          parallel(world, *net, sgd({.lr = world.rank() == 2 ? 0.2 : 0.1}), {.sync = exchange::sync_named(sync)});
    });
}

TEST(Agreement, WhoHasAnOptimizerAndWhoHasNot) {
  expect_mismatch(2, 0, {"optimizer: rank 0 has 'one of the user's own', rank 1 has 'sgd'"}, [](World& world) {
    auto net = models::linear(2, 1);
    Parallel train(world, *net, world.first() ? std::nullopt : std::optional(sgd()),
                   {.exchange = {.sync = Sync::allreduce}});
  });
}

TEST(Agreement, FrozenFromTheStart) {
  expect_mismatch(2, 0, {"requires_grad of 1.weight: rank 0 has 'true', rank 1 has 'false (frozen)'"},
                  [](World& world) {
                    auto net = models::mlp({4, 3, 2});
                    if (!world.first()) net->named_parameters()["1.weight"].requires_grad_(false);
                    auto train = parallel(world, *net, sgd());
                  });
}

/// One rank alone changes its mind in the middle of the training.
class FrozenLater : public testing::TestWithParam<std::tuple<const char*, int, int>> {};

TEST_P(FrozenLater, IsNoticedInThatStep) {
  const auto [sync, ranks, servers] = GetParam();
  std::atomic<int> steps{0};
  for (const bool overlap_next : {false, true}) {
    steps = 0;
    expect_mismatch(
        ranks, servers,
        {"frozen parameters differ", "requires_grad of 1.bias: rank 0 has 'true', rank 1 has 'false (frozen)'"},
        [&](World& world) {
          auto net = models::mlp({4, 3, 2});
          auto train = parallel(world, *net, sgd(),
                                {.exchange = {.sync = exchange::sync_named(sync)}, .overlap_next = overlap_next});
          for (int i = 0; i < 10; i++) {
            if (i == 5 && world.rank() == 1) net->named_parameters()["1.bias"].requires_grad_(false);
            train.step([&] { return net->forward(torch::ones({1, 4})).sum(); });
            steps++;
          }
          if (!train.lockstep()) train.settled([] {});
        });
    const bool lockstep = std::string(sync) == "shared" || std::string(sync) == "allreduce" ||
                          std::string(sync) == "central" || std::string(sync) == "server";
    EXPECT_EQ(steps.load(), ranks * (lockstep ? 5 : 10));
  }
}

INSTANTIATE_TEST_SUITE_P(Modes, FrozenLater,
                         testing::Values(std::tuple{"shared", 2, 0}, std::tuple{"shared", 3, 0},
                                         std::tuple{"allreduce", 2, 0}, std::tuple{"central", 3, 0},
                                         std::tuple{"server", 2, 1}, std::tuple{"async", 2, 1},
                                         std::tuple{"stale:2", 2, 1}, std::tuple{"trylock:1", 2, 1},
                                         std::tuple{"round-robin", 2, 1}, std::tuple{"hogwild", 2, 0},
                                         std::tuple{"local:2", 2, 0}, std::tuple{"elastic:2,0.5", 2, 1},
                                         std::tuple{"diloco:2", 2, 0}));

TEST(Agreement, SeedsOfTheLoader) {
  expect_mismatch(2, 0, {"loaders differ", "seed of the loader: rank 0 has '0', rank 1 has '1'"}, [](World& world) {
    const auto sets = data::open(world.local(), "synthetic:64");
    const data::Loader loader(sets.train, world.rank(), 2, {.batch = 16, .seed = static_cast<uint64_t>(world.rank())});
    auto net = models::mlp({784, 3, 10});
    auto train = parallel(world, *net, sgd());
    auto epoch = loader.epoch(0);
    for (auto& batch : epoch)
      train.step(batch, [&] { return torch::cross_entropy_loss(net->forward(batch.x), batch.y); });
  });
}

/// What ranks may decide for themselves, and settings that the optimizer at hand does not have.
TEST(Agreement, WhatMayDifferByRank) {
  test::run_ranks(2, [](World& world) {
    auto net = models::mlp({784, 3, 10});
    const auto other = [&](auto a, auto b) { return world.first() ? a : b; };
    auto train = parallel(
        world, *net, sgd({.momentum = other(0.9, 0.8), .beta1 = other(0.9, 0.7), .epsilon = other(1e-8, 1e-7)}),
        {.exchange = {.overlap = other(true, false), .lambda = other(0.04, 0.1), .seed = other(1u, 2u)},
         .overlap_next = other(false, true)});
    const auto sets = data::open(world.local(), "synthetic:64");
    const data::Loader loader(sets.train, world.rank(), 2, {.batch = 16, .ahead = other(8u, 2u)});
    auto epoch = loader.epoch(0);
    for (auto& batch : epoch) {
      const auto loss = [&] { return torch::cross_entropy_loss(net->forward(batch.x), batch.y); };
      world.first() ? train.step(batch, loss)
                    : train.step(batch.weight, loss);  // who uses no loader agrees with everybody
    }
    EXPECT_EQ(train.sha256().size(), 64u);
  });
}

TEST(Agreement, OptionsOfTheCommand) {
  expect_mismatch(2, 0, {"options differ", "seed: rank 0 has '1', rank 1 has '2'"}, [](World& world) {
    train::Options options;
    options.model = "linear", options.data = "synthetic:64", options.batch = 16, options.epochs = 1;
    options.seed = world.first() ? 1 : 2;
    std::atomic<bool> stop{false};
    train::run(world, options, {}, stop);
  });
}

}  // namespace
}  // namespace trireme
