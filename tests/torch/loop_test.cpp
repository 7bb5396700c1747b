// label: unit
// An ordinary loop of step() in every mode: the learning rate follows its schedule, and whoever asks for it is stopped.
#include <gtest/gtest.h>

#include <trireme/trireme.h>

#include "ranks.h"

namespace trireme {
namespace {

constexpr double kLr = 0.4;

std::vector<Sync> all_modes() {
  return {Sync::shared,       Sync::allreduce,   Sync::central,      Sync::server,
          Sync::async,        Sync::stale_by(0), Sync::stale_by(2),  Sync::trylock_with(1),
          Sync::round_robin,  Sync::hogwild,     Sync::local_for(3), Sync::elastic_with(3, 0.3),
          Sync::diloco_for(3)};
}

struct Net : torch::nn::Module {
  torch::Tensor parameter = register_parameter("p", torch::zeros({12}, torch::kFloat64));
};

void run(int ranks, const Sync& sync, const std::function<void(World&)>& body) {
  test::run_job(ranks, sync.needs_servers() ? 1 : 0, body);
}

/// As in space::rate_at, written once more: a rise over `warmup` steps, then half a cosine.
double rate_of(int step, int warmup, int total) {
  if (step < warmup) return kLr * (step + 1) / warmup;
  return kLr * (1 + std::cos(M_PI * (step - warmup) / (total - warmup))) / 2;
}

/// Of one rank, whose gradient is 1: parameters move by the rate.
TEST(Loop, TheScheduleGoesOnInEveryMode) {
  constexpr int kWarmup = 3, kTotal = 10;
  for (const Sync& sync : all_modes())
    run(1, sync, [&](World& world) {
      Net net;
      auto train = parallel(
          world, net, sgd({.lr = kLr}),
          {.exchange = {.sync = sync}, .schedule = {.kind = RateSchedule::cosine, .warmup = kWarmup, .total = kTotal}});
      double wanted = 0;
      for (int step = 0; step < kTotal; step++) {
        ASSERT_NEAR(train.learning_rate(), rate_of(step, kWarmup, kTotal), 1e-12) << exchange::name_of(sync);
        train.step([&] { return net.parameter.sum(); });
        wanted -= rate_of(step, kWarmup, kTotal);
      }
      train.settled(
          [&] {  // elastic: the centre, which has gone a part of the way; diloco: what its optimizer makes of it
            if (sync.kind == Sync::elastic || sync.kind == Sync::diloco) return;
            EXPECT_NEAR(net.parameter[5].item<double>(), wanted, 1e-9) << exchange::name_of(sync);
          });
    });
}

TEST(Loop, WhoeverAsksStopsAllRanksInEveryMode) {
  constexpr int kMost = 20000;
  for (const Sync& sync : all_modes())
    run(2, sync, [&](World& world) {
      Net net;
      auto train = parallel(world, net, sgd({.lr = 1e-6}), {.sync = sync});
      Step step;
      for (int i = 0; i < kMost && !step.stop; i++) {
        if (world.rank() == 1 && i == 7) train.request_stop();
        step = train.step([&] { return net.parameter.sum(); });
      }
      EXPECT_TRUE(step.stop) << exchange::name_of(sync) << ", rank " << world.rank();
      train.settled([] {});
    });
}

}  // namespace
}  // namespace trireme
