// label: unit
// Batches in every mode: each sample once an epoch, prepared in the background, and schedule and stop follow.
#include <gtest/gtest.h>

#include <atomic>
#include <map>
#include <mutex>
#include <set>

#include <trireme/trireme.h>

#include "ranks.h"

namespace trireme::data {
namespace {

std::vector<Sync> all_modes() {
  return {Sync::shared,       Sync::allreduce,   Sync::central,      Sync::server,
          Sync::async,        Sync::stale_by(0), Sync::stale_by(2),  Sync::trylock_with(1),
          Sync::round_robin,  Sync::hogwild,     Sync::local_for(3), Sync::elastic_with(3, 0.3),
          Sync::diloco_for(3)};
}

void run(int ranks, const Sync& sync, const std::function<void(World&)>& body) {
  test::run_job(ranks, sync.needs_servers() ? 1 : 0, body);
}

struct Net : torch::nn::Module {
  torch::Tensor parameter = register_parameter("p", torch::zeros({12}, torch::kFloat64));
};

/// A sample's signature.
double sum_of(const Batch& batch, size_t i) {
  return batch.x[static_cast<int64_t>(i)].mul(255).round().sum().item<double>();
}

TEST(Feed, EverySampleOnceAnEpochInEveryMode) {
  constexpr size_t kCount = 100, kBatch = 12;
  for (const Sync& sync : all_modes())
    for (int accumulate : {1, 3}) {
      std::mutex mutex;
      std::map<int64_t, std::multiset<double>> seen;        // by epoch
      std::map<int64_t, std::map<size_t, double>> weights;  // by epoch and step
      std::multiset<double> wanted;
      run(3, sync, [&](World& world) {
        const auto sets = open(world.local(), "synthetic:100");
        Net net;
        auto train = parallel(world, net, sgd({.lr = 1e-3}), {.exchange = {.sync = sync}, .accumulate = accumulate});
        Feed feed(train, sets.train, {.batch = kBatch, .dtype = torch::kFloat64});
        for (int64_t e = 0; e < 3; e++)
          for (auto& batch : feed.epoch(e)) {
            {
              const std::lock_guard lock(mutex);
              weights[e][batch.step] += batch.weight;
              for (size_t i = 0; i < batch.samples(); i++) seen[e].insert(sum_of(batch, i));
            }
            train.step(batch, [&] { return net.parameter.sum(); });
          }
        train.settled([] {});
        if (!world.first()) return;
        for (size_t i = 0; i < kCount; i++) {
          double sum = 0;
          for (size_t p = 0; p < 784; p++)
            sum += static_cast<double>(std::to_integer<int>(sets.train.inputs[i * 784 + p]));
          wanted.insert(sum);
        }
      });
      for (int64_t e = 0; e < 3; e++) {
        EXPECT_EQ(seen[e], wanted) << exchange::name_of(sync) << ", epoch " << e;
        EXPECT_EQ(weights[e].size(), 9u);
        for (const auto& [step, weight] : weights[e]) EXPECT_NEAR(weight, 1, 1e-12) << exchange::name_of(sync);
      }
    }
}

/// Of one rank: what comes next is certain.
TEST(Feed, PreparesInTheBackgroundInEveryMode) {
  for (const Sync& sync : all_modes())
    run(1, sync, [&](World& world) {
      const auto sets = open(world.local(), "synthetic:200");
      Net net;
      auto train = parallel(world, net, sgd({.lr = 1e-3}), {.sync = sync});
      Feed feed(train, sets.train, {.batch = 4});
      for (int64_t e = 0; e < 2; e++) {
        auto epoch = feed.epoch(e);
        size_t batches = 0;
        for (auto& batch : epoch) {
          EXPECT_EQ(batch.step, batches++);
          train.step(batch, [&] { return net.parameter.sum(); });
        }
        EXPECT_EQ(batches, 50u);
        EXPECT_EQ(epoch.unforeseen(), 0u) << exchange::name_of(sync);
      }
    });
}

/// A source that gives what the test says.
struct Given final : exchange::WorkSource {
  Given(int ranks, std::vector<int64_t> given) : WorkSource(0, ranks), given(std::move(given)) {}
  ps::Lease take() override {
    if (next == given.size()) return {ps::Lease::end};
    const int64_t piece = given[next++];
    return {ps::Lease::piece, piece / pieces(), piece};
  }
  std::vector<int64_t> given;
  size_t next = 0;
};

TEST(Feed, WrongGuessesCostNothingButTheirTime) {
  const std::vector<std::vector<int64_t>> courses = {{0, 3, 6, 9, 12, 15},
                                                     {2, 5, 8, 11},
                                                     {0, 1, 2, 3, 4, 5, 6},
                                                     {0, 1, 4, 5, 8, 9, 13, 14, 22, 23},
                                                     {23},
                                                     {7, 20},
                                                     {}};
  test::run_ranks(1, [&](World& world) {
    const auto sets = open(world.local(), "synthetic:96");
    for (size_t ahead : {0u, 1u, 8u})
      for (const auto& pieces : courses) {
        Given source(3, pieces);
        const Stock stock(sets.train, 3, {.batch = 12});
        Feed feed(source, sets.train, {.batch = 12, .ahead = ahead});
        auto epoch = feed.epoch(2);
        size_t i = 0;
        for (auto& batch : epoch) {
          ASSERT_EQ(batch.piece, pieces.at(i));
          const Batch wanted = stock.batch(stock.order(2), 2, pieces[i++], 0, stock.cut.ranks);
          ASSERT_TRUE(torch::equal(batch.x, wanted.x) && torch::equal(batch.y, wanted.y));
        }
        EXPECT_EQ(i, pieces.size());
        EXPECT_TRUE(pieces.size() != 6 || epoch.unforeseen() == 0) << "a share of every step is foreseen";
      }
  });
}

TEST(Feed, TheScheduleFollowsInEveryMode) {
  constexpr int kEpochs = 2, kSteps = 5;
  for (const Sync& sync : all_modes())
    run(2, sync, [&](World& world) {
      const auto sets = open(world.local(), "synthetic:40");
      Net net;
      auto train = parallel(world, net, sgd({.lr = 1}),
                            {.exchange = {.sync = sync},
                             .schedule = {.kind = RateSchedule::step, .warmup = 4, .step_size = 2, .gamma = 0.5}});
      Feed feed(train, sets.train, {.batch = 8});
      for (int e = 0; e < kEpochs; e++)
        for (auto& batch : feed.epoch(e)) {
          const int step = e * kSteps + static_cast<int>(batch.step);
          const double wanted = step < 4 ? (step + 1) / 4.0 : std::pow(0.5, (step - 4) / 2);
          ASSERT_NEAR(train.learning_rate(), wanted, 1e-12) << exchange::name_of(sync) << ", step " << step;
          train.step(batch, [&] { return net.parameter.sum(); });
        }
      train.settled([] {});
    });
}

TEST(Feed, EndsWhenSomebodyStops) {
  for (const Sync& sync : all_modes())
    run(2, sync, [&](World& world) {
      const auto sets = open(world.local(), "synthetic:4000");
      Net net;
      auto train = parallel(world, net, sgd({.lr = 1e-6}), {.sync = sync});
      Feed feed(train, sets.train, {.batch = 2});
      bool stopped = false;
      int done = 0;
      for (int e = 0; e < 3; e++) {
        auto epoch = feed.epoch(e);
        for (auto& batch : epoch) {
          train.step(batch, [&] { return net.parameter.sum(); });
          if (++done == 5 && world.rank() == 1) train.request_stop();
        }
        stopped = epoch.stopped();
      }
      EXPECT_TRUE(stopped) << exchange::name_of(sync) << ", rank " << world.rank();
      train.settled([] {});
    });
}

TEST(Feed, BreaksOffAndGoesOn) {
  for (const Sync& sync : {Sync(Sync::shared), Sync(Sync::async), Sync(Sync::hogwild)})
    run(1, sync, [&](World& world) {
      const auto sets = open(world.local(), "synthetic:40");
      Net net;
      auto train = parallel(world, net, sgd({.lr = 1e-3}), {.sync = sync});
      Feed feed(train, sets.train, {.batch = 4});
      for (int e : {0, 0, 1, 5}) {  // the number is an order of samples; it may come again
        size_t batches = 0;
        for (auto& batch : feed.epoch(e, {.end = 7})) {
          EXPECT_EQ(batch.step, batches);
          train.step(batch, [&] { return net.parameter.sum(); });
          if (++batches == 3 && e == 1) break;
        }
        EXPECT_EQ(batches, e == 1 ? 3u : 7u) << exchange::name_of(sync);
      }
    });
}

TEST(Feed, RefusesOtherMicroBatchesThanTheUpdateHas) {
  test::run_ranks(1, [&](World& world) {
    const auto sets = open(world.local(), "synthetic:40");
    Net net;
    auto train = parallel(world, net, sgd({.lr = 1e-3}), {.accumulate = 2});
    EXPECT_THROW(Feed(train, sets.train, {.batch = 8, .accumulate = 4}), InvalidArgument);
    EXPECT_THROW(Feed(train, sets.train, {.batch = 1}), InvalidArgument);
  });
}

/// Meets every three steps, and counts the pieces that had been trained by then.
struct EveryThree final : Meetings {
  EveryThree(World& world, std::atomic<int64_t>& trained) : world(world), trained(trained) {}
  int64_t until_next(int64_t done) override { return 3 - done % 3; }
  void meet(int64_t done) override {
    world.comm().barrier("meeting");
    seen.emplace_back(done, trained.load());
    world.comm().barrier("seen");
  }
  World& world;
  std::atomic<int64_t>& trained;
  std::vector<std::pair<int64_t, int64_t>> seen;
};

/// 9 steps an epoch, 3 ranks: after `done` steps exactly their pieces have been trained, in every mode.
TEST(Feed, RanksMeetBetweenTheSameTwoSteps) {
  for (const Sync& sync : all_modes()) {
    std::atomic<int64_t> trained{0};
    run(3, sync, [&](World& world) {
      const auto sets = open(world.local(), "synthetic:100");
      Net net;
      auto train = parallel(world, net, sgd({.lr = 1e-3}), {.sync = sync});
      Feed feed(train, sets.train, {.batch = 12});
      EveryThree meetings(world, trained);
      feed.meet_at(&meetings);
      for (int64_t e = 0; e < 2; e++) {
        for (auto& batch : feed.epoch(e)) {
          train.step(batch, [&] { return net.parameter.sum(); });
          trained++;
        }
        world.comm().barrier("epoch");
      }
      const std::vector<std::pair<int64_t, int64_t>> wanted = {{3, 9}, {6, 18}, {12, 36}, {15, 45}};
      EXPECT_EQ(meetings.seen, wanted) << exchange::name_of(sync) << ", rank " << world.rank();
    });
  }
}

/// An epoch that was left after four of its nine steps goes on with the fifth: together each sample once.
TEST(Feed, GoesOnInTheMiddleOfAnEpoch) {
  for (const Sync& sync : all_modes()) {
    std::mutex mutex;
    std::multiset<double> seen, wanted;
    for (const Stretch& stretch : {Stretch{.end = 4}, Stretch{.first = 4}, Stretch{}})
      run(3, sync, [&](World& world) {  // another job each time
        const auto sets = open(world.local(), "synthetic:100");
        Net net;
        auto train = parallel(world, net, sgd({.lr = 1e-3}), {.sync = sync});
        Feed feed(train, sets.train, {.batch = 12});
        for (auto& batch : feed.epoch(1, stretch)) {
          {
            const std::lock_guard lock(mutex);
            auto& to = stretch.first == 0 && stretch.end > 9 ? wanted : seen;
            for (size_t i = 0; i < batch.samples(); i++) to.insert(sum_of(batch, i));
          }
          EXPECT_TRUE(batch.step >= stretch.first && batch.step < stretch.end);
          train.step(batch, [&] { return net.parameter.sum(); });
        }
        world.comm().barrier("epoch");
      });
    EXPECT_EQ(seen, wanted) << exchange::name_of(sync);
    EXPECT_EQ(seen.size(), 100u);
  }
}

/// Whoever wants to stop: all stop behind the same step, and no piece of it is left out.
TEST(Feed, StopsBehindAWholeStep) {
  for (const Sync& sync : all_modes()) {
    std::mutex mutex;
    std::map<size_t, int> pieces;  // by step
    run(3, sync, [&](World& world) {
      const auto sets = open(world.local(), "synthetic:1000");
      Net net;
      auto train = parallel(world, net, sgd({.lr = 1e-3}), {.sync = sync});
      Feed feed(train, sets.train, {.batch = 12});
      auto epoch = feed.epoch(0);
      int own = 0;
      for (auto& batch : epoch) {
        train.step(batch, [&] { return net.parameter.sum(); });
        const std::lock_guard lock(mutex);
        pieces[batch.step]++;
        if (++own == 5 && world.rank() == 1) train.request_stop();
      }
      EXPECT_TRUE(epoch.stopped()) << exchange::name_of(sync);
      world.comm().barrier("stopped");
    });
    EXPECT_LT(pieces.size(), 84u) << exchange::name_of(sync);
    for (const auto& [step, count] : pieces) EXPECT_EQ(count, 3) << exchange::name_of(sync) << ", step " << step;
  }
}

}  // namespace
}  // namespace trireme::data
