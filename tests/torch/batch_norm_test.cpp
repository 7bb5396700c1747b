// label: unit
// Batch norm with the statistics of all ranks, against one process that has the whole batch.
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <mutex>

#include <trireme/trireme.h>

#include "ranks.h"

namespace trireme {
namespace {

namespace nn = torch::nn;
using torch::Tensor;

/// One kind of batch norm in a small net.
struct Case {
  std::string name;
  int dims = 2;  // of BatchNorm
  bool affine = true, track = true;
  c10::optional<double> momentum = 0.1;
  bool channels_last = false;
};

nn::BatchNormOptions options_of(const Case& c, int64_t channels) {
  return nn::BatchNormOptions(channels).affine(c.affine).track_running_stats(c.track).momentum(c.momentum);
}

/// A user's module, with typed members.
struct Net : nn::Module {
  explicit Net(const Case& c) : c(c) {
    if (c.dims == 1) {
      first = register_module("first", nn::Linear(5, 7));
      norm1 = register_module("norm1", nn::BatchNorm1d(options_of(c, 7)));
      again1 = register_module("again1", nn::BatchNorm1d(options_of(c, 7)));
    }
    if (c.dims == 2) {
      conv2 = register_module("conv2", nn::Conv2d(nn::Conv2dOptions(3, 4, 3).bias(false)));
      norm2 = register_module("norm2", nn::BatchNorm2d(options_of(c, 4)));
      again2 = register_module("again2", nn::BatchNorm2d(options_of(c, 4)));
    }
    if (c.dims == 3) {
      conv3 = register_module("conv3", nn::Conv3d(2, 4, 2));
      norm3 = register_module("norm3", nn::BatchNorm3d(options_of(c, 4)));
    }
    last = register_module("last", nn::Linear(c.dims == 1 ? 7 : 4, 3));
    to(torch::kFloat64);
  }

  Tensor forward(Tensor x) {
    if (c.dims == 1) x = again1(torch::tanh(norm1(first(x))));
    if (c.dims == 2) x = again2(torch::relu(norm2(conv2(x)))).mean({2, 3});
    if (c.dims == 3) x = torch::relu(norm3(conv3(x))).mean({2, 3, 4});
    return last(x);
  }

  Case c;
  nn::Linear first{nullptr}, last{nullptr};
  nn::Conv2d conv2{nullptr};
  nn::Conv3d conv3{nullptr};
  nn::BatchNorm1d norm1{nullptr}, again1{nullptr};
  nn::BatchNorm2d norm2{nullptr}, again2{nullptr};
  nn::BatchNorm3d norm3{nullptr};
};

constexpr int kSteps = 7;
constexpr int64_t kBatch = 13;

Tensor samples(const Case& c, int step) {
  static const std::vector<std::vector<int64_t>> shapes = {{}, {kBatch, 5}, {kBatch, 3, 6, 5}, {kBatch, 2, 3, 4, 3}};
  const auto& shape = shapes[static_cast<size_t>(c.dims)];
  int64_t count = 1;
  for (const int64_t extent : shape) count *= extent;
  const Tensor x =
      torch::sin(torch::arange(count, torch::kFloat64) * (0.7 + 0.01 * step)).mul(3).add(20 + step).view(shape);
  return c.channels_last ? x.contiguous(torch::MemoryFormat::ChannelsLast) : x;
}

Tensor targets(int step) { return torch::arange(kBatch).add(step).remainder(3); }

void set(Net& net) {
  const torch::NoGradGuard no_grad;
  int64_t number = 0;
  for (auto& p : net.parameters())
    p.copy_(torch::cos(torch::arange(p.numel(), torch::kFloat64) * 1.3 + number++).view(p.sizes()));
}

Tensor loss_of(Net& net, const Tensor& x, const Tensor& y) { return torch::cross_entropy_loss(net.forward(x), y); }

using State = std::map<std::string, Tensor>;

State state_of(Net& net) {
  State state;
  for (const auto& item : net.named_parameters()) state[item.key()] = item.value().detach().clone();
  for (const auto& item : net.named_buffers())
    if (item.value().defined()) state[item.key()] = item.value().clone();
  return state;
}

/// Plain libtorch. With `parts`, each step's gradient is that of so many micro-batches with equal numbers of samples.
State alone(const Case& c, const std::vector<std::pair<int64_t, int64_t>>& micro = {{0, kBatch}}) {
  Net net(c);
  set(net);
  torch::optim::SGD optimizer(net.parameters(), torch::optim::SGDOptions(0.1).momentum(0.9));
  for (int step = 0; step < kSteps; step++) {
    optimizer.zero_grad();
    for (const auto& [begin, end] : micro)
      (loss_of(net, samples(c, step).slice(0, begin, end), targets(step).slice(0, begin, end)) *
       (static_cast<double>(end - begin) / kBatch))
          .backward();
    optimizer.step();
  }
  return state_of(net);
}

/// Where rank's share of a part of the batch begins: `cuts` in parts of a whole, so uneven, and different in every
/// step.
using Cut = std::function<int64_t(int rank, int step)>;

State together(int ranks, const Case& c, const ParallelOptions& options, const Cut& cut,
               const std::vector<std::pair<int64_t, int64_t>>& micro = {{0, kBatch}}) {
  State result;
  test::run_ranks(ranks, [&](World& world) {
    Net net(c);
    set(net);
    auto train = parallel(world, net, momentum({.lr = 0.1, .momentum = 0.9}), options);
    for (int step = 0; step < kSteps; step++)
      for (const auto& [begin, end] : micro) {
        const auto clip = [&](int64_t at) { return std::clamp(at, begin, end); };
        const int64_t from = clip(cut(world.rank(), step)), to = clip(cut(world.rank() + 1, step));
        train.step(static_cast<double>(to - from) / kBatch,
                   [&] { return loss_of(net, samples(c, step).slice(0, from, to), targets(step).slice(0, from, to)); });
      }
    train.settled([&] {
      if (world.rank() == ranks - 1) result = state_of(net);
    });
  });
  return result;
}

void expect_equal(const State& mine, const State& theirs, double bound = 1e-9) {
  ASSERT_EQ(mine.size(), theirs.size());
  for (const auto& [name, tensor] : theirs) {
    ASSERT_TRUE(mine.contains(name)) << name;
    EXPECT_LT((mine.at(name) - tensor).abs().max().item<double>(), bound) << name;
  }
}

/// Thirds or so, with a remainder.
Cut even(int ranks) {
  return [ranks](int rank, int) { return kBatch * rank / ranks; };
}

/// Everything differs in every step; some rank has nothing at all in most of them, and not always the same one.
Cut uneven(int ranks) {
  return [ranks](int rank, int step) -> int64_t {
    if (rank == 0) return 0;
    if (rank == ranks) return kBatch;
    static const int64_t cuts[] = {4, 13, 0, 9, 2, 13, 11};
    return std::min<int64_t>(kBatch, cuts[step % 7] + (rank - 1) * 2);
  };
}

const std::vector<Case> kCases = {{"1d", 1},
                                  {"2d", 2},
                                  {"3d", 3},
                                  {"2d_plain", 2, false},
                                  {"1d_untracked", 1, true, false},
                                  {"1d_plain_untracked", 1, false, false},
                                  {"2d_cumulative", 2, true, true, c10::nullopt},
                                  {"2d_channels_last", 2, true, true, 0.1, true},
                                  {"2d_cumulative_channels_last", 2, false, true, c10::nullopt, true}};

TEST(SyncBatchNorm, EqualsOneProcess) {
  for (const Case& c : kCases) {
    const State reference = alone(c);
    for (const int ranks : {1, 2, 3}) {
      SCOPED_TRACE(c.name + ", ranks " + std::to_string(ranks));
      expect_equal(together(ranks, c, {.exchange = {.bucket_bytes = 64}, .sync_batch_norm = true}, even(ranks)),
                   reference);
      expect_equal(together(ranks, c, {.exchange = {.bucket_bytes = 64}, .sync_batch_norm = true}, uneven(ranks)),
                   reference);
    }
  }
}

TEST(SyncBatchNorm, InEveryModeOfRanksInLockstep) {
  const State reference = alone(kCases[1]);
  for (const Sync sync : {Sync::shared, Sync::allreduce, Sync::central})
    for (const bool overlap : {false, true}) {
      SCOPED_TRACE(exchange::name_of(sync));
      expect_equal(
          together(3, kCases[1],
                   {.exchange = {.sync = sync, .bucket_bytes = 1, .overlap = overlap}, .sync_batch_norm = true},
                   uneven(3)),
          reference);
    }
}

TEST(SyncBatchNorm, EachMicroBatchIsNormalisedOverAllRanks) {
  const std::vector<std::pair<int64_t, int64_t>> micro = {{0, 6}, {6, kBatch}};
  for (const Case& c : {kCases[0], kCases[6]}) {
    const State reference = alone(c, micro);
    const Cut thirds = [](int rank, int) -> int64_t {
      return std::vector<int64_t>{0, 3, 10, 13}[static_cast<size_t>(rank)];
    };
    expect_equal(together(3, c, {.accumulate = 2, .sync_batch_norm = true}, thirds, micro), reference);
  }
}

TEST(SyncBatchNorm, OffEachRankHasItsOwn) {
  const State reference = alone(kCases[1]), own = together(2, kCases[1], {}, even(2));
  double most = 0;
  for (const auto& [name, tensor] : reference)
    most = std::max(most, (own.at(name) - tensor).abs().max().item<double>());
  EXPECT_GT(most, 1e-4);  // or the tests above show nothing
}

TEST(SyncBatchNorm, SinglePrecisionFollowsDouble) {
  test::run_ranks(2, [](World& world) {
    nn::Sequential net(nn::BatchNorm1d(3), nn::Linear(3, 1));
    auto train = parallel(world, *net, sgd({.lr = 0.0}), {.sync_batch_norm = true});
    const Tensor all =
        torch::sin(torch::arange(30.0)).view({10, 3}) + 1000;  // a large mean: sums of squares would show
    const Tensor mine = world.rank() == 0 ? all.slice(0, 0, 3) : all.slice(0, 3, 10);
    train.step(world.rank() == 0 ? 0.3 : 0.7, [&] { return net->forward(mine).sum(); });
    const auto buffers = net->named_buffers();
    const Tensor wide = all.to(torch::kFloat64);
    EXPECT_TRUE(torch::allclose(buffers["0.running_mean"].to(torch::kFloat64), wide.mean(0) * 0.1, 1e-6, 0));
    EXPECT_TRUE(torch::allclose(buffers["0.running_var"].to(torch::kFloat64), wide.var(0) * 0.1 + 0.9, 1e-4, 0));
  });
}

TEST(SyncBatchNorm, InstanceNormAndEvaluationAreLeftAlone) {
  test::run_ranks(2, [](World& world) {
    nn::Sequential net(nn::InstanceNorm1d(nn::InstanceNorm1dOptions(2).affine(true)), nn::BatchNorm1d(2));
    net->to(torch::kFloat64);
    const Tensor x = torch::sin(torch::arange(24, torch::kFloat64) * (world.rank() + 1)).view({3, 2, 4});
    const Tensor expected = (x - x.mean(2, true)) / (x.var(2, false, true) + 1e-5).sqrt();
    auto train = parallel(world, *net, sgd({.lr = 0.0}), {.sync_batch_norm = true});
    net->ptr(1)->eval();
    train.step([&] {
      const Tensor y = net->forward(x);
      EXPECT_TRUE(torch::allclose(y, expected / std::sqrt(1 + 1e-5), 1e-12, 1e-12));  // by mean 0 and variance 1
      return y.sum();
    });
    EXPECT_EQ(net->named_buffers()["1.num_batches_tracked"].item<int64_t>(), 0);
  });
}

TEST(SyncBatchNorm, ManyBucketsAndLayers) {
  // More buckets than may be open at a time, and a layer that waits after each few of them.
  const auto make = [] {
    nn::Sequential net;
    for (int i = 0; i < 30; i++) {
      net->push_back(nn::Linear(6, 6));
      net->push_back(nn::Linear(6, 6));
      if (i % 3 == 0) net->push_back(nn::BatchNorm1d(6));
    }
    net->to(torch::kFloat64);
    const torch::NoGradGuard no_grad;
    int64_t number = 0;
    for (auto& p : net->parameters())
      p.copy_(torch::cos(torch::arange(p.numel(), torch::kFloat64) * 1.7 + number++).view(p.sizes()));
    return net;
  };
  const Tensor x = torch::sin(torch::arange(60, torch::kFloat64)).view({10, 6});
  auto one = make();
  torch::optim::SGD optimizer(one->parameters(), torch::optim::SGDOptions(0.01));
  for (int step = 0; step < 5; step++) {
    optimizer.zero_grad();
    one->forward(x).pow(2).mean().backward();
    optimizer.step();
  }
  for (const Sync sync : {Sync::shared, Sync::allreduce})
    test::run_ranks(3, [&](World& world) {
      auto net = make();
      auto train = parallel(world, *net, sgd({.lr = 0.01}),
                            {.exchange = {.sync = sync, .bucket_bytes = 1}, .sync_batch_norm = true});
      const int64_t from = world.rank() * 3, to = world.rank() == 2 ? 10 : from + 3;
      for (int step = 0; step < 5; step++)
        train.step(static_cast<double>(to - from) / 10,
                   [&] { return net->forward(x.slice(0, from, to)).pow(2).mean(); });
      for (size_t i = 0; i < one->parameters().size(); i++)
        EXPECT_TRUE(torch::allclose(net->parameters()[i], one->parameters()[i], 1e-8, 1e-10)) << i;
    });
}

template <class Error>
void expect_refused(const std::function<void()>& run, const std::string& part) {
  try {
    run();
    ADD_FAILURE() << "not refused";
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find(part), std::string::npos) << error.what();
  }
}

TEST(SyncBatchNorm, WhatCannotWorkIsRefused) {
  for (const Sync& sync :
       {Sync(Sync::async), Sync(Sync::hogwild), Sync::local_for(3), Sync::stale_by(2), Sync(Sync::round_robin)})
    expect_refused<InvalidArgument>(
        [&] {
          test::run_ranks(1, [&](World& world) {
            nn::Sequential net(nn::BatchNorm1d(3));
            parallel(world, *net, sgd({.lr = 0.1}), {.exchange = {.sync = sync}, .sync_batch_norm = true});
          });
        },
        "each goes at its own pace");
  const auto step = [](const std::function<Tensor(nn::Sequential&)>& loss) {
    return [loss] {
      test::run_ranks(2, [&](World& world) {
        nn::Sequential net(nn::BatchNorm1d(3));
        auto train = parallel(world, *net, sgd({.lr = 0.1}), {.sync_batch_norm = true});
        train.step([&] { return loss(net); });
      });
    };
  };
  expect_refused<InvalidArgument>(step([](nn::Sequential& net) {
                                    return net->forward(torch::ones({1, 3})).sum();
                                  }),
                                  "a single sample");
  expect_refused<InvalidArgument>(step([](nn::Sequential& net) {
                                    const Tensor x = torch::randn({4, 3}).requires_grad_();
                                    const Tensor y = net->forward(x).pow(3).sum();
                                    return torch::autograd::grad({y}, {x}, {}, true, true)[0].pow(2).sum();
                                  }),
                                  "twice");
  expect_refused<Mismatch>(
      step([n = std::make_shared<std::atomic<int>>(0)](nn::Sequential& net) {
        const int64_t width = (*n)++ == 0 ? 2 : 3;
        return torch::batch_norm(torch::randn({4, width}), {}, {}, {}, {}, true, 0.1, 1e-5, false).sum() +
               0 * net->forward(torch::randn({4, 3})).sum();
      }),
      "of 7 × f64");
}

TEST(SyncBatchNorm, ABackwardPassOutsideOfItsStepIsRefused) {
  test::run_ranks(2, [](World& world) {
    nn::Sequential net(nn::BatchNorm1d(3));
    Tensor kept;
    auto train = parallel(world, *net, sgd({.lr = 0.1}), {.sync_batch_norm = true});
    train.step([&] {
      kept = net->forward(torch::randn({4, 3})).sum();
      return net->forward(torch::randn({4, 3})).sum();
    });
    expect_refused<InvalidArgument>([&] { kept.backward(); }, "belongs to the call of step()");
  });
}

}  // namespace
}  // namespace trireme
