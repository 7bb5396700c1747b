// label: multiproc
// OnNan::skip: a run whose batch had a NaN ends with the bits of a run in which that batch did not exist, in every
// mode.
#include <gtest/gtest.h>

#include <trireme/trireme.h>

#include "ranks.h"

namespace trireme {
namespace {

using torch::nn::Linear;

struct Net : torch::nn::Module {
  Linear in{register_module("in", Linear(5, 60))}, out{register_module("out", Linear(60, 3))};
  torch::nn::BatchNorm1d norm{register_module("norm", torch::nn::BatchNorm1d(60))};
  Net() {
    const torch::NoGradGuard no_grad;
    for (auto& p : parameters()) p.copy_(torch::sin(torch::arange(p.numel()) * 1.7 + 0.3).view(p.sizes()) / 2);
  }
  torch::Tensor forward(const torch::Tensor& x) { return out(torch::tanh(norm(in(x)))); }
};

torch::Tensor rows(int step, int rank, int columns, double phase) {
  return torch::sin(torch::arange(4 * columns) * (0.37 + 0.11 * step + 0.05 * rank) + phase).view({4, columns});
}

enum class Flaw { none, input, loss, infinite_loss, gradient };

/// With Flaw::infinite_loss all gradients are finite.
torch::Tensor loss_of(Net& net, int step, int rank, Flaw flaw) {
  torch::Tensor x = rows(step, rank, 5, 0.2);
  if (flaw == Flaw::input) x[1][2] = std::nan("");
  torch::Tensor loss = (net.forward(x) - rows(step, rank, 3, 1.1)).pow(2).mean();
  if (flaw == Flaw::loss) loss = loss * std::nan("");
  if (flaw == Flaw::infinite_loss) loss = loss + std::numeric_limits<float>::infinity();
  if (flaw == Flaw::gradient) loss = loss + (net.in->weight - net.in->weight.detach()).abs().sqrt().sum();
  return loss;
}

struct Case {
  Sync sync;
  int ranks = 2;
  Flaw flaw = Flaw::loss;
  space::UpdaterOptions optimizer = momentum({.lr = 0.05});
  int accumulate = 1;
  bool overlap_next = false;
  double clip = 0;
  OnNan on_nan = OnNan::skip;
};

std::string text_of(const Case& c) {
  return fmt::format("{} {} ranks, flaw {}, {}, accumulate {}{}{}", exchange::name_of(c.sync), c.ranks,
                     static_cast<int>(c.flaw), space::name_of(c.optimizer.kind), c.accumulate,
                     c.overlap_next ? ", overlapped" : "", c.clip > 0 ? ", clipped" : "");
}

constexpr int kSteps = 6, kBad = 3;

struct Ran {
  std::string sha256;
  std::vector<Step> steps;  // of rank 0
};

/// `missing`: the batch with the flaw does not exist.
Ran run(const Case& c, bool missing) {
  Ran ran;
  std::mutex mutex;
  test::run_job(c.ranks, c.sync.needs_servers() ? 1 : 0, [&](World& world) {
    Net net;
    Parallel train =
        parallel(world, net, c.optimizer,
                 ParallelOptions{.exchange = {.sync = c.sync, .bucket_bytes = 600, .clip = c.clip, .on_nan = c.on_nan},
                                 .accumulate = c.accumulate,
                                 .overlap_next = c.overlap_next});
    std::vector<Step> steps;
    for (int step = 0; step < kSteps; step++) {
      if (missing && step == kBad) continue;
      for (int micro = 0; micro < c.accumulate; micro++) {
        const bool bad = step == kBad && world.rank() == c.ranks - 1 && micro == 0;
        const Step done =
            train.step([&] { return loss_of(net, step * 10 + micro, world.rank(), bad ? c.flaw : Flaw::none); });
        if (micro + 1 == c.accumulate) steps.push_back(done);
      }
    }
    const std::string sha256 = train.sha256();
    const std::lock_guard lock(mutex);
    if (world.first()) ran = {sha256, steps};
  });
  return ran;
}

void expect_as_if_missing(const Case& c) {
  const Ran with = run(c, false), without = run(c, true);
  EXPECT_EQ(with.sha256, without.sha256) << text_of(c);
  ASSERT_EQ(with.steps.size(), static_cast<size_t>(kSteps)) << text_of(c);
  const bool sees = c.sync.lockstep() || c.ranks == 1;  // rank 0 hears of the last rank's
  for (size_t i = 0; i < with.steps.size() && sees; i++) {
    EXPECT_EQ(with.steps[i].skipped, i == kBad) << text_of(c) << ", step " << i;
    EXPECT_EQ(with.steps[i].updated, i != kBad) << text_of(c) << ", step " << i;
    EXPECT_EQ(with.steps[i].number, static_cast<int64_t>(i < kBad ? i + 1 : i)) << text_of(c) << ", step " << i;
  }
  if (!sees) return;
  EXPECT_NE(with.steps[kBad].reason.find(c.flaw == Flaw::gradient ? "the gradient of" : "the loss became"),
            std::string::npos)
      << text_of(c) << ": " << with.steps[kBad].reason;
  EXPECT_NE(with.steps[kBad].reason.find(fmt::format("on rank {} at update {}", c.ranks - 1, kBad + 1)),
            std::string::npos)
      << text_of(c) << ": " << with.steps[kBad].reason;
}

const Sync kLockstep[] = {Sync::shared, Sync::allreduce, Sync::central, Sync::server, Sync::stale_by(0)};

TEST(Skip, InLockstepTheBatchDidNotExist) {
  for (const Sync& sync : kLockstep)
    for (int ranks : {1, 2, 3})
      for (Flaw flaw : {Flaw::input, Flaw::loss, Flaw::infinite_loss, Flaw::gradient})
        expect_as_if_missing({.sync = sync, .ranks = ranks, .flaw = flaw});
}

TEST(Skip, WithEveryOptimizerAndSetting) {
  for (const Sync& sync : kLockstep) {
    for (const auto& optimizer : {sgd({.lr = 0.05}), adam({.lr = 0.01}), adagrad({.lr = 0.01})})
      expect_as_if_missing({.sync = sync, .optimizer = optimizer});
    expect_as_if_missing({.sync = sync, .accumulate = 2});
    expect_as_if_missing({.sync = sync, .overlap_next = true});
    expect_as_if_missing({.sync = sync, .flaw = Flaw::gradient, .accumulate = 2, .overlap_next = true, .clip = 0.3});
  }
}

TEST(Skip, WhereEachGoesItsOwnWayItIsThatWorkersUpdate) {
  for (const Sync& sync : {Sync(Sync::async), Sync::stale_by(2), Sync::trylock_with(1), Sync(Sync::round_robin),
                           Sync(Sync::hogwild), Sync::local_for(10), Sync::elastic_with(10, 0.3)})
    for (Flaw flaw : {Flaw::input, Flaw::infinite_loss, Flaw::gradient})
      expect_as_if_missing({.sync = sync, .ranks = 1, .flaw = flaw});
}

/// Others must not wait for a gradient that will not come.
TEST(Skip, NobodyWaitsForTheSkippedOne) {
  for (const Sync& sync : {Sync(Sync::async), Sync::stale_by(1), Sync::trylock_with(1), Sync(Sync::round_robin),
                           Sync(Sync::hogwild), Sync::local_for(2), Sync::elastic_with(2, 0.3)})
    for (Flaw flaw : {Flaw::loss, Flaw::gradient}) {
      const Ran ran = run({.sync = sync, .flaw = flaw}, false);
      EXPECT_EQ(ran.steps.size(), static_cast<size_t>(kSteps)) << exchange::name_of(sync);
      EXPECT_EQ(ran.steps.back().number, kSteps) << "rank 0 has skipped nothing";
    }
}

/// Without a NaN it is the run that it would have been.
TEST(Skip, ChangesNoBitOfASoundRun) {
  for (const Sync& sync : kLockstep)
    EXPECT_EQ(run({.sync = sync, .flaw = Flaw::none}, false).sha256,
              run({.sync = sync, .flaw = Flaw::none, .on_nan = OnNan::stop}, false).sha256)
        << exchange::name_of(sync);
}

TEST(Skip, UsersOwnOptimizerHasNothingToApply) {
  test::run_ranks(2, [](World& world) {
    Net net;
    Parallel train = parallel(world, net, exchange::Options{.sync = Sync::allreduce, .on_nan = OnNan::skip});
    for (int step = 0; step < 3; step++) {
      const bool bad = step == 1;
      const Step done = train.step(
          [&] { return loss_of(net, step, world.rank(), bad && !world.first() ? Flaw::infinite_loss : Flaw::none); });
      EXPECT_EQ(done.skipped, bad);
      for (const auto& parameter : net.parameters()) EXPECT_EQ(parameter.grad().defined(), !bad);
    }
  });
}

}  // namespace
}  // namespace trireme
