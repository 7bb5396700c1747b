// label: multiproc
// Samples by speed: ranks of which one is slow end with the parameters of one process, each sample once an epoch, on
// one machine and on several; the slow one gets fewer samples, and is named.
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <cmath>
#include <mutex>
#include <thread>

#include <trireme/trireme.h>

#include "../core/cluster/groups.h"

namespace trireme::tests {
namespace {

constexpr size_t kSamples = 590, kBatch = 60;  // the last step of an epoch is smaller
constexpr int64_t kEpochs = 8;
constexpr double kSecondsPerSample = 100e-6, kSlower = 8;

struct Net : torch::nn::Module {
  Net() {
    static std::mutex one_at_a_time;  // they share a generator
    const std::lock_guard lock(one_at_a_time);
    torch::manual_seed(3);
    first = register_module("first", torch::nn::Linear(784, 8));
    last = register_module("last", torch::nn::Linear(8, 10));
    to(torch::kFloat64);
  }
  torch::Tensor loss(const data::Batch& batch) {
    return torch::nn::functional::cross_entropy(last(torch::tanh(first(batch.x.flatten(1)))), batch.y);
  }
  torch::nn::Linear first{nullptr}, last{nullptr};
};

struct Case {
  std::vector<int> machine_of;
  exchange::Options exchange{};
  int accumulate = 1;
  Balancing balance = Balancing::automatic;
  int slow = -1;  // a rank
};

struct Outcome {
  std::vector<double> parameters;
  exchange::Balance balance;
  std::map<int64_t, std::pair<double, double>> epochs;  // samples, and the sum of their signs
  size_t fewest = kBatch;                               // samples that the slow one had in a full step
};

Outcome train(const Case& c) {
  Outcome outcome;
  std::mutex mutex;
  const auto ends = run_world(c.machine_of, [&](Group& group, cluster::Site&) {
    const data::Dataset set = data::make_synthetic(group.local(), kSamples, 1);
    Net net;
    Parallel train(group, net, space::momentum({.lr = 1e-3}),
                   {.exchange = c.exchange,
                    .accumulate = c.accumulate,
                    .overlap_next = true,
                    .balance = c.balance,
                    .balance_stint = Seconds(0.03)});
    data::Feed feed(train, set, {.batch = kBatch, .dtype = torch::kFloat64});
    const bool slow = group.rank() == c.slow;
    for (int64_t e = 0; e < kEpochs; e++)
      for (auto& batch : feed.epoch(e)) {
        {
          const std::lock_guard lock(mutex);
          auto& [samples, signs] = outcome.epochs[e];
          samples += static_cast<double>(batch.samples());
          signs += batch.signs;
          if (slow && (batch.step + 1) * kBatch <= kSamples) outcome.fewest = std::min(outcome.fewest, batch.samples());
        }
        train.step(batch, [&] {
          if (c.slow >= 0)
            std::this_thread::sleep_for(
                Seconds(static_cast<double>(batch.samples()) * kSecondsPerSample * (slow ? kSlower : 1)));
          return net.loss(batch);
        });
      }
    train.settled([&] {
      if (!group.first()) return;
      for (const auto& p : net.parameters()) {
        const auto flat = p.detach().flatten().contiguous();
        outcome.parameters.insert(outcome.parameters.end(), flat.data_ptr<double>(),
                                  flat.data_ptr<double>() + flat.numel());
      }
      outcome.balance = train.balance();
    });
  });
  for (const auto& end : ends)
    if (end) std::rethrow_exception(end);
  return outcome;
}

const Outcome& alone() {
  static const Outcome outcome = train({.machine_of = {0}, .balance = Balancing::even});
  return outcome;
}

void expect_same(const Outcome& one, const std::string& what) {
  ASSERT_EQ(one.parameters.size(), alone().parameters.size());
  double furthest = 0;
  for (size_t i = 0; i < one.parameters.size(); i++)
    furthest = std::max(furthest, std::abs(one.parameters[i] - alone().parameters[i]));
  EXPECT_LT(furthest, 1e-10) << what;
  for (int64_t e = 0; e < kEpochs; e++) {
    EXPECT_EQ(one.epochs.at(e).first, kSamples) << what;
    EXPECT_EQ(one.epochs.at(e).second, data::sign_of_all(kSamples)) << what << ": each sample once";
  }
}

TEST(Balancing, TheResultIsThatOfOneProcess) {
  const std::vector<Case> cases = {
      {.machine_of = {0, 0, 0}},
      {.machine_of = {0, 0, 0}, .exchange = {.clip = 0.1}},
      {.machine_of = {0, 0, 0}, .accumulate = 2},
      {.machine_of = {0, 0, 0}, .exchange = {.sync = Sync::allreduce}},
      {.machine_of = {0, 0, 0}, .exchange = {.sync = Sync::central}},
      {.machine_of = {0, 1, 1}},
      {.machine_of = {0, 1, 1}, .exchange = {.sync = Sync::allreduce}},
      {.machine_of = {0, 0, 1}, .exchange = {.zero = 2}},
  };
  for (Case c : cases) {
    const std::string what =
        fmt::format("{} machines, sync {}, accumulate {}, zero {}, clip {}", c.machine_of.back() + 1,
                    exchange::name_of(c.exchange.sync), c.accumulate, c.exchange.zero, c.exchange.clip);
    c.slow = 2;
    const Outcome outcome = train(c);
    if (c.exchange.clip == 0) expect_same(outcome, what);
    ASSERT_EQ(outcome.balance.shares.size(), 3u) << what << ": " << outcome.balance.reason;
    EXPECT_LE(outcome.fewest, 14u) << what << ": the shares were uneven in steps that were made";
    EXPECT_LT(outcome.balance.shares[2], outcome.balance.shares[0]) << what;
    if (outcome.balance.straggler) {  // on a busy machine others may be waited for as well
      EXPECT_EQ(outcome.balance.straggler->rank, 2) << what;
    }
    EXPECT_EQ(outcome.balance.names[2].substr(0, 12), "rank 2 (host") << what;
  }
}

TEST(Balancing, WatchingDividesEvenly) {
  const Outcome outcome = train({.machine_of = {0, 0, 0}, .balance = Balancing::watch, .slow = 1});
  expect_same(outcome, "watch");
  EXPECT_EQ(outcome.fewest, kBatch / 3);
  EXPECT_TRUE(outcome.balance.shares.empty());
  ASSERT_TRUE(outcome.balance.straggler);
  EXPECT_EQ(outcome.balance.straggler->rank, 1);
  EXPECT_GT(outcome.balance.straggler->waited, 0.1 * outcome.balance.straggler->step);
}

std::string refusal(const ParallelOptions& options) {
  try {
    check(options);
  } catch (const InvalidArgument& error) {
    return error.what();
  }
  return "";
}

TEST(Balancing, IsRefusedWhereItMakesNoSense) {
  constexpr auto kAuto = Balancing::automatic;
  EXPECT_NE(refusal({.exchange = {.sync = Sync::async}, .balance = kAuto}).find("at its own pace"), std::string::npos);
  EXPECT_NE(refusal({.exchange = {.virtual_workers = 4}, .balance = kAuto}).find("virtual 4"), std::string::npos);
  EXPECT_NE(refusal({.sync_batch_norm = true, .balance = kAuto}).find("sync_batch_norm"), std::string::npos);
  EXPECT_EQ(refusal({.balance = kAuto}), "");
  EXPECT_THROW(balancing_named("speed"), InvalidArgument);
}

}  // namespace
}  // namespace trireme::tests
