// label: multiproc
// Clipping by the norm against libtorch's clip_grad_norm_ in one process, and what becomes of NaN: in every mode.
#include <gtest/gtest.h>

#include <trireme/trireme.h>

#include "ranks.h"

namespace trireme {
namespace {

using torch::nn::Linear;
using Outcomes = std::vector<std::exception_ptr>;

/// Ranks as threads, and as many servers as the mode can use.
Outcomes run(int ranks, const Sync& sync, const std::function<void(World&)>& body, int servers = 2) {
  static std::atomic<int> jobs{0};
  const std::string job = fmt::format("guards-{}-{}", getpid(), jobs++);
  if (!sync.needs_servers()) servers = 0;
  std::vector<std::thread> threads;
  for (int server = 0; server < servers; server++)
    threads.emplace_back([&, server] {
      try {
        ps::Server(
            {.server = server, .workers = ranks, .servers = servers, .meeting = {.job = job}, .timeout = Seconds(30)})
            .run();
      } catch (const Error&) {  // a worker failed: that is what some tests are about
      }
    });
  Outcomes outcomes(static_cast<size_t>(ranks));
  for (int rank = 0; rank < ranks; rank++)
    threads.emplace_back([&, rank] {
      at::set_num_threads(1);
      try {
        cluster::Place place{rank, ranks, job, "test"};
        place.servers = servers;
        World world(place, {.timeout = Seconds(30)});
        body(world);
      } catch (...) {
        outcomes[static_cast<size_t>(rank)] = std::current_exception();
      }
    });
  for (std::thread& thread : threads) thread.join();
  return outcomes;
}

std::string message_of(const std::exception_ptr& error) {
  try {
    if (error) std::rethrow_exception(error);
  } catch (const std::exception& caught) {
    return caught.what();
  }
  return "";
}

bool is_not_finite(const std::exception_ptr& error) {
  try {
    if (error) std::rethrow_exception(error);
  } catch (const NotFinite&) {
    return true;
  } catch (...) {
  }
  return false;
}

void expect_all_well(const Outcomes& outcomes) {
  for (size_t rank = 0; rank < outcomes.size(); rank++) EXPECT_EQ(message_of(outcomes[rank]), "") << "rank " << rank;
}

constexpr int kRows = 12;
constexpr double kClip = 0.7, kRate = 0.05;

struct Net : torch::nn::Module {
  Linear in{register_module("in", Linear(7, 40))}, out{register_module("out", Linear(40, 3))},
      never{register_module("never", Linear(3, 3))};
  Net() {
    to(torch::kFloat64);
    const torch::NoGradGuard no_grad;
    for (auto& p : parameters())
      p.copy_(torch::sin(torch::arange(p.numel(), torch::kFloat64) * 1.7 + 0.3).view(p.sizes()) / 2);
  }
  torch::Tensor forward(const torch::Tensor& x) { return out(torch::tanh(in(x))); }
  std::vector<torch::Tensor> copy() const {
    std::vector<torch::Tensor> all;
    for (const auto& p : parameters()) all.push_back(p.detach().clone());
    return all;
  }
};

torch::Tensor rows(int step, int columns, double phase) {
  return torch::sin(torch::arange(kRows * columns, torch::kFloat64) * (0.37 + 0.11 * step) + phase)
      .view({kRows, columns});
}

/// The mean over rows [begin, end) of a step. Gradients grow and shrink from step to step: some are clipped, some are
/// not.
torch::Tensor loss_of(Net& net, int step, int begin, int end) {
  const auto x = rows(step, 7, 0.2).slice(0, begin, end), y = rows(step, 3, 1.1).slice(0, begin, end);
  return (net.forward(x) - y).pow(2).mean() * (step % 3 == 0 ? 0.05 : 2.0);
}

struct Share {
  int begin, end;
  double weight() const { return static_cast<double>(end - begin) / kRows; }
};
/// Uneven: the last rank has the rest.
Share share_of(int rank, int ranks) {
  const int size = std::max(1, kRows / ranks - 1), begin = rank * size;
  return {begin, rank + 1 == ranks ? kRows : begin + size};
}

using Make = std::function<std::unique_ptr<torch::optim::Optimizer>(std::vector<torch::Tensor>)>;
struct Case {
  std::string name;
  space::UpdaterOptions ours;
  Make theirs;
};
std::vector<Case> cases() {
  using namespace torch::optim;
  return {{"momentum", momentum({.lr = kRate, .momentum = 0.9}),
           [](auto p) { return std::make_unique<SGD>(p, SGDOptions(kRate).momentum(0.9)); }},
          {"adam", adam({.lr = kRate}), [](auto p) { return std::make_unique<Adam>(p, AdamOptions(kRate)); }}};
}

/// The whole batch in one process, without Trireme.
std::vector<torch::Tensor> clipped_by_torch(const Case& c, int steps) {
  Net net;
  const auto optimizer = c.theirs(net.parameters());
  int above = 0, below = 0;
  for (int step = 0; step < steps; step++) {
    optimizer->zero_grad();
    for (auto& p : net.parameters()) p.mutable_grad().reset();
    loss_of(net, step, 0, kRows).backward();
    const double norm = torch::nn::utils::clip_grad_norm_(net.parameters(), kClip);
    (norm > kClip ? above : below)++;
    optimizer->step();
  }
  EXPECT_GT(above, 3);
  EXPECT_GT(below, 3);
  return net.copy();
}

void expect_near(const Net& net, const std::vector<torch::Tensor>& wanted, const std::string& where,
                 double bound = 1e-11) {
  for (size_t i = 0; i < wanted.size(); i++)
    EXPECT_LT((net.parameters()[i] - wanted[i]).abs().max().item<double>(), bound) << where << " parameter " << i;
}

const std::vector<Sync>& lockstep_modes() {
  static const std::vector<Sync> modes = {Sync::shared, Sync::allreduce, Sync::central, Sync::server,
                                          Sync::stale_by(0)};
  return modes;
}

TEST(Clip, EqualsTorchWhereRanksUpdateTogether) {
  constexpr int kSteps = 25;
  for (const Case& c : cases()) {
    const auto wanted = clipped_by_torch(c, kSteps);
    for (const Sync& sync : lockstep_modes())
      for (int ranks : {1, 2, 3})
        for (bool overlap_next : {false, true}) {
          const std::string where = fmt::format("{} {} {} ranks", c.name, exchange::name_of(sync), ranks);
          expect_all_well(run(ranks, sync, [&](World& world) {
            Net net;
            auto train = parallel(
                world, net, c.ours,
                {.exchange = {.sync = sync, .bucket_bytes = 600, .clip = kClip}, .overlap_next = overlap_next});
            const Share share = share_of(world.rank(), ranks);
            for (int step = 0; step < kSteps; step++)
              train.step(share.weight(), [&] { return loss_of(net, step, share.begin, share.end); });
            train.settled([&] { expect_near(net, wanted, where); });
          }));
        }
  }
}

TEST(Clip, CountsTheSumOfMicroBatches) {
  constexpr int kSteps = 12;
  const Case c = cases()[0];
  const auto wanted = clipped_by_torch(c, kSteps);
  for (const Sync& sync : lockstep_modes())
    expect_all_well(run(2, sync, [&](World& world) {
      Net net;
      auto train = parallel(world, net, c.ours, {.exchange = {.sync = sync, .clip = kClip}, .accumulate = 3});
      for (int step = 0; step < kSteps; step++)
        for (int micro = 0; micro < 3; micro++) {
          const int begin = (world.rank() * 3 + micro) * 2;
          train.step(2.0 / kRows, [&] { return loss_of(net, step, begin, begin + 2); });
        }
      train.settled([&] { expect_near(net, wanted, exchange::name_of(sync)); });
    }));
}

/// One rank that trains on its own is one process.
TEST(Clip, EqualsTorchWhereAGradientIsAppliedByItself) {
  constexpr int kSteps = 25;
  for (const Case& c : cases()) {
    const auto wanted = clipped_by_torch(c, kSteps);
    for (const Sync& sync :
         {Sync(Sync::async), Sync::stale_by(3), Sync::trylock_with(1), Sync(Sync::round_robin), Sync(Sync::hogwild),
          Sync::local_for(4), Sync::diloco_for(1000), Sync::elastic_with(1000, 0.3)})
      expect_all_well(run(1, sync, [&](World& world) {
        Net net;
        auto train = parallel(world, net, c.ours, {.sync = sync, .bucket_bytes = 600, .clip = kClip});
        for (int step = 0; step < kSteps; step++) {
          train.step([&] { return loss_of(net, step, 0, kRows); });
        }
        expect_near(net, wanted, c.name + " " + exchange::name_of(sync));
      }));
  }
}

/// Each of two replicas clips its own gradient; their mean is taken after every second step.
TEST(Clip, IsEachRanksOwnWithLocalSteps) {
  constexpr int kSteps = 8;
  Net first, second;
  torch::optim::SGD one(first.parameters(), torch::optim::SGDOptions(kRate)),
      two(second.parameters(), torch::optim::SGDOptions(kRate));
  for (int step = 0; step < kSteps; step++) {
    one.zero_grad(), two.zero_grad();
    loss_of(first, step, 0, 3).backward();
    loss_of(second, step, 3, kRows).backward();
    torch::nn::utils::clip_grad_norm_(first.parameters(), 0.1);
    torch::nn::utils::clip_grad_norm_(second.parameters(), 0.1);
    one.step(), two.step();
    const torch::NoGradGuard no_grad;
    for (size_t i = 0; step % 2 == 1 && i < first.parameters().size(); i++) {
      const auto mean = (first.parameters()[i] + second.parameters()[i]) / 2;
      first.parameters()[i].copy_(mean), second.parameters()[i].copy_(mean);
    }
  }
  expect_all_well(run(2, Sync::local_for(2), [&](World& world) {
    Net net;
    auto train = parallel(world, net, sgd({.lr = kRate}), {.sync = Sync::local_for(2), .clip = 0.1});
    const int begin = world.rank() == 0 ? 0 : 3, end = world.rank() == 0 ? 3 : kRows;
    for (int step = 0; step < kSteps; step++) train.step([&] { return loss_of(net, step, begin, end); });
    expect_near(net, first.copy(), "local:2");
  }));
}

TEST(Clip, UsersOwnOptimizerSeesClippedGradients) {
  Net alone;
  loss_of(alone, 1, 0, kRows).backward();
  EXPECT_GT(torch::nn::utils::clip_grad_norm_(alone.parameters(), 0.3), 0.3);
  for (int ranks : {1, 2, 3})
    expect_all_well(run(ranks, Sync::allreduce, [&](World& world) {
      Net net;
      auto train = parallel(world, net, {.sync = Sync::allreduce, .bucket_bytes = 600, .clip = 0.3});
      const Share share = share_of(world.rank(), ranks);
      train.step(share.weight(), [&] { return loss_of(net, 1, share.begin, share.end); });
      double squares = 0;
      for (size_t i = 0; i < 4; i++) {
        EXPECT_LT((net.parameters()[i].grad() - alone.parameters()[i].grad()).abs().max().item<double>(), 1e-13) << i;
        squares += net.parameters()[i].grad().pow(2).sum().item<double>();
      }
      EXPECT_NEAR(std::sqrt(squares), 0.3, 1e-6);
      EXPECT_FALSE(net.never->weight.grad().defined());
    }));
}

TEST(Clip, ImpossibleNormsAreRefused) {
  for (double clip : {-1.0, std::nan(""), std::numeric_limits<double>::infinity()})
    EXPECT_NE(message_of(run(1, Sync::shared,
                             [&](World& world) {
                               Net net;
                               parallel(world, net, sgd(), {.clip = clip});
                             })[0])
                  .find("clip must be a norm"),
              std::string::npos);
}

// ---- NaN ----

torch::Tensor no_number() { return torch::full({}, std::nan(""), torch::kFloat64); }
/// 0, with a gradient that is NaN.
torch::Tensor flawed(const torch::Tensor& parameter) { return (parameter - parameter.detach()).abs().sqrt().sum(); }

bool all_finite(const Net& net) {
  const auto all = net.parameters();
  return std::all_of(all.begin(), all.end(), [](const torch::Tensor& p) { return p.isfinite().all().item<bool>(); });
}

struct Trouble {
  Sync sync;
  int ranks;
  double clip;
  bool overlap_next;
};
std::vector<Trouble> troubles() {
  std::vector<Trouble> all;
  for (const Sync& sync : lockstep_modes())
    for (int ranks : {1, 2, 3})
      for (double clip : {0.0, 0.7})
        for (bool overlap_next : {false, true}) all.push_back({sync, ranks, clip, overlap_next});
  return all;
}
std::string text_of(const Trouble& t) {
  return fmt::format("{} {} ranks, clip {}{}", exchange::name_of(t.sync), t.ranks, t.clip,
                     t.overlap_next ? ", overlapped" : "");
}

TEST(OnNan, EveryRankHearsWhoseLossItWas) {
  for (const Trouble& t : troubles()) {
    const int culprit = t.ranks - 1;
    const auto outcomes = run(t.ranks, t.sync, [&](World& world) {
      Net net;
      auto train =
          parallel(world, net, momentum({.lr = kRate}),
                   {.exchange = {.sync = t.sync, .bucket_bytes = 600, .clip = t.clip}, .overlap_next = t.overlap_next});
      const Share share = share_of(world.rank(), t.ranks);
      const auto step = [&](int number, bool bad) {
        return train.step(share.weight(), [&] {
          return loss_of(net, number, share.begin, share.end) * (bad ? no_number() : torch::ones({}, torch::kFloat64));
        });
      };
      for (int number = 0; number < 3; number++) step(number, false);
      std::vector<torch::Tensor> before;
      train.settled([&] { before = net.copy(); });
      std::string heard;
      try {
        step(3, world.rank() == culprit);
      } catch (const NotFinite& error) {
        heard = error.what();
      }
      EXPECT_NE(heard.find(fmt::format("the loss became NaN on rank {} at update 4.", culprit)), std::string::npos)
          << text_of(t) << ": " << heard;
      EXPECT_NE(heard.find("smaller learning rate than 0.05"), std::string::npos) << heard;
      train.settled([&] {
        EXPECT_TRUE(all_finite(net)) << text_of(t);
        for (size_t i = 0; t.ranks == 1 && i < before.size(); i++)
          EXPECT_TRUE(torch::equal(net.parameters()[i], before[i])) << text_of(t) << ": nobody had a gradient";
      });
      EXPECT_EQ(step(4, false).number, 5) << "ranks are where they were, together";
      EXPECT_EQ(train.sha256().size(), 64u);
    });
    expect_all_well(outcomes);
  }
}

TEST(OnNan, EveryRankHearsWhoseGradientItWas) {
  for (const Trouble& t : troubles()) {
    const int culprit = t.ranks / 2;
    const auto outcomes = run(t.ranks, t.sync, [&](World& world) {
      Net net;
      auto train =
          parallel(world, net, momentum({.lr = kRate}),
                   {.exchange = {.sync = t.sync, .bucket_bytes = 600, .clip = t.clip}, .overlap_next = t.overlap_next});
      const Share share = share_of(world.rank(), t.ranks);
      const auto step = [&](int number, bool bad) {
        return train.step(share.weight(), [&] {
          const auto loss = loss_of(net, number, share.begin, share.end);
          return bad ? loss + flawed(net.in->weight) : loss;
        });
      };
      for (int number = 0; number < 3; number++) step(number, false);
      std::vector<torch::Tensor> before;
      train.settled([&] { before = net.copy(); });
      std::string heard;
      try {
        step(3, world.rank() == culprit);
        train.sha256();  // at the latest
      } catch (const NotFinite& error) {
        heard = error.what();
      }
      EXPECT_NE(heard.find(
                    fmt::format("the gradient of 'in.weight' became NaN or infinite on rank {} at update 4,", culprit)),
                std::string::npos)
          << text_of(t) << ": " << heard;
      train.settled([&] {
        EXPECT_TRUE(all_finite(net)) << text_of(t);
        for (size_t i = 0; i < before.size(); i++) {
          const bool same = torch::equal(net.parameters()[i], before[i]);
          EXPECT_TRUE(same || t.clip == 0) << text_of(t) << ": nothing of the update is applied";
        }
        EXPECT_TRUE(torch::equal(net.in->weight, before[0])) << text_of(t);
      });
      EXPECT_EQ(step(4, false).number, 5) << "ranks are where they were, together";
      train.settled([&] { EXPECT_FALSE(torch::equal(net.in->weight, before[0])) << text_of(t); });
    });
    expect_all_well(outcomes);
  }
}

TEST(OnNan, OfALargeTensorOnlyTheSumIsKeptByAllreduce) {
  struct Wide : torch::nn::Module {
    Linear one{register_module("one", Linear(torch::nn::LinearOptions(200, 200).bias(false)))};
  };
  expect_all_well(run(2, Sync::allreduce, [](World& world) {
    Wide net;
    auto train = parallel(world, net, sgd(), {.sync = Sync::allreduce});
    std::string heard;
    try {
      train.step([&] {
        return net.one(torch::ones({1, 200})).sum() + (world.first() ? torch::zeros({}) : flawed(net.one->weight));
      });
    } catch (const NotFinite& error) {
      heard = error.what();
    }
    EXPECT_NE(heard.find("the gradient of 'one.weight' became NaN or infinite at update 1, summed over ranks 0 to 1"),
              std::string::npos)
        << heard;
    EXPECT_TRUE(net.one->weight.isfinite().all().item<bool>());
  }));
}

TEST(OnNan, UsersOwnOptimizerIsNotGivenIt) {
  for (double clip : {0.0, 1.0})
    expect_all_well(run(2, Sync::allreduce, [&](World& world) {
      Net net;
      auto train = parallel(world, net, {.sync = Sync::allreduce, .clip = clip});
      EXPECT_THROW(train.step([&] {
        return loss_of(net, 1, 0, kRows) + (world.first() ? flawed(net.out->bias) : torch::zeros({}, torch::kFloat64));
      }),
                   NotFinite);
      EXPECT_FALSE(net.out->bias.grad().defined());
    }));
}

/// The rank that has it knows all; the others end, or hear that it is gone. What they train stays finite.
TEST(OnNan, ARankOnItsOwnSaysItBeforeOthersSeeIt) {
  for (const Sync& sync : {Sync(Sync::async), Sync::stale_by(2), Sync::trylock_with(1), Sync(Sync::round_robin),
                           Sync(Sync::hogwild), Sync::local_for(2), Sync::diloco_for(2), Sync::elastic_with(2, 0.3)})
    for (bool in_loss : {true, false})
      for (double clip : {0.0, 0.7}) {
        if (sync.kind == Sync::trylock && !in_loss && clip == 0) continue;  // it may be dropped before anybody looks
        const std::string where =
            fmt::format("{}, {}, clip {}", exchange::name_of(sync), in_loss ? "loss" : "gradient", clip);
        const auto outcomes = run(2, sync, [&](World& world) {
          Net net;
          auto train = parallel(world, net, sgd({.lr = kRate}), {.sync = sync, .bucket_bytes = 600, .clip = clip});
          try {
            for (int step = 0; step < 6; step++) {
              const bool bad = step == 2 && world.rank() == 1;
              train.step([&] {
                const auto loss = loss_of(net, step, 0, kRows);
                return !bad ? loss : in_loss ? loss * no_number() : loss + flawed(net.in->weight);
              });
            }
            EXPECT_NE(world.rank(), 1) << where << ": no error";
          } catch (...) {
            EXPECT_TRUE(all_finite(net)) << where;
            throw;
          }
          EXPECT_TRUE(all_finite(net)) << where;
        });
        EXPECT_TRUE(is_not_finite(outcomes[1])) << where << ": " << message_of(outcomes[1]);
        const std::string wanted = in_loss
                                       ? "the loss became NaN on rank 1 at update 3."
                                       : "the gradient of 'in.weight' became NaN or infinite on rank 1 at update 3,";
        EXPECT_NE(message_of(outcomes[1]).find(wanted), std::string::npos) << where << ": " << message_of(outcomes[1]);
        EXPECT_FALSE(is_not_finite(outcomes[0])) << where << ": " << message_of(outcomes[0]);
      }
}

TEST(OnNan, IgnoredItGoesOn) {
  for (const Sync& sync : {Sync(Sync::shared), Sync(Sync::allreduce), Sync(Sync::server), Sync(Sync::async),
                           Sync::local_for(2), Sync::diloco_for(2)})
    for (double clip : {0.0, 1.0})
      expect_all_well(run(2, sync, [&](World& world) {
        Net net;
        auto train = parallel(world, net, sgd({.lr = kRate}), {.sync = sync, .clip = clip, .on_nan = OnNan::ignore});
        const Step step = train.step([&] { return loss_of(net, 1, 0, kRows) * no_number(); });
        EXPECT_TRUE(std::isnan(step.loss));
        train.settled([&] {
          EXPECT_FALSE(all_finite(net)) << exchange::name_of(sync) << ": NaN must not become a zero update in silence";
        });
      }));
}

}  // namespace
}  // namespace trireme
