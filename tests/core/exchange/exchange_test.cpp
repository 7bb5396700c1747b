// label: unit
// Every way to exchange gradients against one loop that sums them and applies the optimizer's formula.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <atomic>
#include <cmath>
#include <cstring>

#include <trireme/exchange/exchange.h>

#include "../comm/ranks.h"

namespace trireme::exchange::tests {
namespace {

using comm::shm::Communicator;
using space::Layout;
using space::Optimizer;
using space::Slot;
using space::UpdaterOptions;
using trireme::tests::expect_all_well;
using trireme::tests::expect_error;
using trireme::tests::run_ranks;

constexpr int kSteps = 20;
using Parameters = std::vector<std::vector<double>>;  // by slot

Layout small_model() {
  return Layout({{"conv.weight", DType::f64, {6, 5, 5}},
                 {"conv.bias", DType::f64, {6}},
                 {"fc1.weight", DType::f64, {37, 41}},
                 {"fc1.bias", DType::f64, {37}},
                 {"scale", DType::f64, {}},
                 {"fc2.weight", DType::f64, {10, 37}},
                 {"unused", DType::f64, {9}},
                 {"fc2.bias", DType::f64, {10}}});
}

double noise(uint64_t a, uint64_t b, uint64_t c, uint64_t d) {
  uint64_t x = a * 0x9e3779b97f4a7c15 + b * 0xbf58476d1ce4e5b9 + c * 0x94d049bb133111eb + d * 0xd6e8feb86659fd93 + 1;
  for (int i = 0; i < 3; i++) x = (x ^ (x >> 29)) * 0xbf58476d1ce4e5b9;
  return static_cast<double>(x >> 11) * 0x1p-52 - 1;
}

double start_value(size_t slot, size_t i) { return noise(77, slot, i, 0); }
double gradient(int rank, int step, size_t slot, size_t i) {
  return noise(static_cast<uint64_t>(rank) + 1, static_cast<uint64_t>(step), slot, i);
}
double rate(int step) { return 0.02 / (1 + 0.1 * step); }

/// Some slots have no gradient on some ranks, some on none; "unused" never has one.
bool has_gradient(int rank, int step, size_t slot) {
  if (slot == 6) return false;
  if (step % 5 == 3 && slot == 2) return false;
  if (step % 4 == 1 && slot % 3 == 0) return rank % 2 == 1;
  return true;
}

/// The same in one thread: sums over ranks in double, then the formulas of torch.optim.
Parameters reference(const Layout& layout, const UpdaterOptions& o, int ranks) {
  Parameters p, s, v;
  for (size_t slot = 0; slot < layout.size(); slot++) {
    p.emplace_back(layout[slot].elements());
    for (size_t i = 0; i < p[slot].size(); i++) p[slot][i] = start_value(slot, i);
    s.emplace_back(p[slot].size(), 0.0);
    v.emplace_back(p[slot].size(), 0.0);
  }
  std::vector<int> steps(layout.size());  // of each slot: those with a gradient
  for (int step = 1; step <= kSteps; step++)
    for (size_t slot = 0; slot < layout.size(); slot++) {
      std::vector<int> present;
      for (int rank = 0; rank < ranks; rank++)
        if (has_gradient(rank, step, slot)) present.push_back(rank);
      if (present.empty()) continue;
      steps[slot]++;
      for (size_t i = 0; i < p[slot].size(); i++) {
        double g = 0;
        for (int rank : present) g += gradient(rank, step, slot, i);
        double &x = p[slot][i], &m = s[slot][i], &w = v[slot][i];
        const double lr = rate(step);
        if (o.kind == Optimizer::adamw)
          x *= 1 - lr * o.weight_decay;
        else
          g += o.weight_decay * x;
        if (o.kind == Optimizer::sgd) {
          x -= lr * g;
        } else if (o.kind == Optimizer::momentum) {
          m = o.momentum * m + g;
          x -= lr * (o.nesterov ? g + o.momentum * m : m);
        } else if (o.kind == Optimizer::adagrad) {
          m += g * g;
          x -= lr * g / (std::sqrt(m) + 1e-10);
        } else {
          m = o.beta1 * m + (1 - o.beta1) * g;
          w = o.beta2 * w + (1 - o.beta2) * g * g;
          x -= lr / (1 - std::pow(o.beta1, steps[slot])) * m /
               (std::sqrt(w) / std::sqrt(1 - std::pow(o.beta2, steps[slot])) + 1e-8);
        }
      }
    }
  return p;
}

double* elements(std::byte* flat, const Slot& slot) { return reinterpret_cast<double*>(flat + slot.range.begin); }

/// One rank's training; returns its parameters at the end.
Parameters train(Communicator& group, const Layout& layout, const UpdaterOptions& optimizer, const Options& options) {
  const auto exchange = make_exchange(group, layout, optimizer, options);
  if (group.rank() == 0)
    for (size_t slot = 0; slot < layout.size(); slot++)
      for (size_t i = 0; i < layout[slot].elements(); i++)
        elements(exchange->parameters(), layout[slot])[i] = start_value(slot, i);
  exchange->publish_parameters();
  for (int step = 1; step <= kSteps; step++) {
    exchange->begin(rate(step));
    exchange->open();
    for (size_t b = 0; b < exchange->buckets().size(); b++) {
      for (size_t slot = exchange->buckets()[b].first; slot < exchange->buckets()[b].last; slot++) {
        const bool present = has_gradient(group.rank(), step, slot);
        for (size_t i = 0; i < layout[slot].elements(); i++)  // what a slot without a gradient holds must not matter
          elements(exchange->gradients(), layout[slot])[i] = present ? gradient(group.rank(), step, slot, i) : 1e6;
        if (present) exchange->present(slot);
      }
      exchange->ready(b);
    }
    exchange->finish();
  }
  Parameters result;
  for (const Slot& slot : layout.slots())
    result.emplace_back(elements(exchange->parameters(), slot),
                        elements(exchange->parameters(), slot) + slot.elements());
  group.barrier("read");
  return result;
}

/// Trains on `ranks` threads, expects the same parameters on all, and returns them.
Parameters train_all(int ranks, const Layout& layout, const UpdaterOptions& optimizer, const Options& options) {
  std::vector<Parameters> results(static_cast<size_t>(ranks));
  expect_all_well(run_ranks(ranks, [&](Communicator& group) {
    results[static_cast<size_t>(group.rank())] = train(group, layout, optimizer, options);
  }));
  for (const Parameters& other : results) EXPECT_EQ(other, results[0]);
  return results[0];
}

const std::vector<UpdaterOptions>& optimizers() {
  static const std::vector<UpdaterOptions> all = {space::sgd({.weight_decay = 0.01}),
                                                  space::momentum(),
                                                  space::momentum({.nesterov = true, .weight_decay = 0.01}),
                                                  space::adagrad(),
                                                  space::adam({.weight_decay = 0.01}),
                                                  space::adamw({.weight_decay = 0.1})};
  return all;
}

class EveryExchange : public testing::TestWithParam<std::tuple<Sync, int>> {
 protected:
  static Options options() { return {.sync = std::get<0>(GetParam()), .bucket_bytes = 4000}; }
  static int ranks() { return std::get<1>(GetParam()); }
};

TEST_P(EveryExchange, FollowsTheFormulas) {
  const Layout layout = small_model();
  for (const UpdaterOptions& optimizer : optimizers()) {
    const Parameters wanted = reference(layout, optimizer, ranks()),
                     got = train_all(ranks(), layout, optimizer, options());
    ASSERT_EQ(got.size(), wanted.size());
    for (size_t slot = 0; slot < wanted.size(); slot++)
      for (size_t i = 0; i < wanted[slot].size(); i++)
        ASSERT_NEAR(got[slot][i], wanted[slot][i], 1e-12)
            << space::name_of(optimizer.kind) << " " << layout[slot].name << "[" << i << "]";
    for (size_t i = 0; i < 9; i++) EXPECT_EQ(got[6][i], start_value(6, i)) << "a parameter without gradients moved";
  }
}

TEST_P(EveryExchange, TwoRunsGiveTheSameBits) {
  const Layout layout = small_model();
  EXPECT_EQ(train_all(ranks(), layout, space::adam(), options()), train_all(ranks(), layout, space::adam(), options()));
}

TEST_P(EveryExchange, OverlapAndBucketsDoNotChangeTheBits) {
  const Layout layout = small_model();
  Options other = options();
  const Parameters wanted = train_all(ranks(), layout, space::momentum(), other);
  other.overlap = false;
  EXPECT_EQ(train_all(ranks(), layout, space::momentum(), other), wanted);
  for (size_t bytes : {size_t{1}, size_t{1} << 30}) {
    other.bucket_bytes = bytes;
    for (bool overlap : {false, true}) {
      other.overlap = overlap;
      EXPECT_EQ(train_all(ranks(), layout, space::momentum(), other), wanted) << bytes << " bytes a bucket";
    }
  }
}

TEST_P(EveryExchange, HundredsOfBucketsInAStep) {
  std::vector<Slot> slots;
  for (int i = 0; i < 200; i++) slots.push_back({fmt::format("p{}", i), DType::f64, {i % 5 + 1}});
  const Layout layout(slots);
  Options tiny = options();
  tiny.bucket_bytes = 1;
  const Parameters wanted = reference(layout, space::sgd(), ranks());
  for (bool overlap : {false, true}) {
    tiny.overlap = overlap;
    const Parameters got = train_all(ranks(), layout, space::sgd(), tiny);
    for (size_t slot = 0; slot < wanted.size(); slot++)
      for (size_t i = 0; i < wanted[slot].size(); i++) ASSERT_NEAR(got[slot][i], wanted[slot][i], 1e-12) << slot;
  }
}

TEST_P(EveryExchange, DifferentModelsAreRefusedByName) {
  if (ranks() == 1) GTEST_SKIP() << "nobody to differ from";
  const auto outcomes = run_ranks(ranks(), [&](Communicator& group) {
    std::vector<Slot> slots = {{"fc.weight", DType::f64, {3, 4}}, {"fc.bias", DType::f64, {group.rank() == 1 ? 5 : 3}}};
    make_exchange(group, Layout(slots), space::sgd(), options());
  });
  for (const auto& outcome : outcomes)
    expect_error<Mismatch>(
        outcome, {"models differ", "parameter 1", "rank 0 has 'fc.bias f64[3]'", "rank 1 has 'fc.bias f64[5]'"});
}

TEST_P(EveryExchange, AModelWithoutParametersIsRefused) {
  for (const auto& outcome :
       run_ranks(ranks(), [&](Communicator& group) { make_exchange(group, Layout(), space::sgd(), options()); }))
    expect_error<InvalidArgument>(outcome, {"no parameters"});
}

TEST_P(EveryExchange, WithoutAnOptimizerOnlyAllreduceWorks) {
  const Layout layout = small_model();
  const auto outcomes = run_ranks(ranks(), [&](Communicator& group) {
    const auto exchange = make_exchange(group, layout, std::nullopt, options());
    EXPECT_EQ(exchange->updater(), nullptr);
    exchange->begin(0.1);
    exchange->open();
    for (size_t slot = 0; slot < layout.size(); slot++) {
      for (size_t i = 0; i < layout[slot].elements(); i++)
        elements(exchange->gradients(), layout[slot])[i] = gradient(group.rank(), 1, slot, i);
      exchange->present(slot);
    }
    for (size_t b = 0; b < exchange->buckets().size(); b++) exchange->ready(b);
    exchange->finish();
    for (size_t slot = 0; slot < layout.size(); slot++)
      for (size_t i = 0; i < layout[slot].elements(); i++) {
        double sum = 0;
        for (int rank = 0; rank < group.size(); rank++) sum += gradient(rank, 1, slot, i);
        ASSERT_NEAR(elements(exchange->gradients(), layout[slot])[i], sum, 1e-14);
      }
  });
  if (options().sync == Sync::allreduce) return expect_all_well(outcomes);
  for (const auto& outcome : outcomes)
    expect_error<InvalidArgument>(outcome, {name_of(options().sync), "use 'allreduce'"});
}

TEST_P(EveryExchange, RanksWithDifferentBucketsAreRefused) {
  if (ranks() == 1) GTEST_SKIP() << "nobody to differ from";
  const Layout layout = small_model();
  const auto outcomes = run_ranks(ranks(), [&](Communicator& group) {
    Options own = options();
    own.bucket_bytes = group.rank() == 0 ? 1 : 1 << 20;
    train(group, layout, space::sgd(), own);
  });
  for (const auto& outcome : outcomes)
    expect_error<Mismatch>(outcome, {"settings differ", "bucket_bytes: rank 0 has '1', rank 1 has '1048576'"});
}

std::string parameter_name(const testing::TestParamInfo<std::tuple<Sync, int>>& info) {
  return name_of(std::get<0>(info.param)) + "_" + std::to_string(std::get<1>(info.param));
}
INSTANTIATE_TEST_SUITE_P(Syncs, EveryExchange,
                         testing::Combine(testing::Values(Sync::shared, Sync::allreduce, Sync::central),
                                          testing::Values(1, 2, 3, 4)),
                         parameter_name);

TEST(Exchange, AllWaysGiveTheSameParameters) {
  const Layout layout = small_model();
  const Parameters shared = train_all(3, layout, space::adamw(), {.sync = Sync::shared, .bucket_bytes = 3000});
  EXPECT_EQ(train_all(3, layout, space::adamw(), {.sync = Sync::allreduce, .bucket_bytes = 3000}), shared);
  EXPECT_EQ(train_all(3, layout, space::adamw(), {.sync = Sync::central, .bucket_bytes = 3000}), shared);
}

TEST(Exchange, SharedCarriesWhatRanksTell) {
  for (int ranks : {1, 2, 4})
    expect_all_well(run_ranks(ranks, [&](Communicator& group) {
      const auto exchange = make_exchange(group, small_model(), space::sgd(), {.bucket_bytes = 3000});
      for (int step = 0; step < 50; step++) {
        exchange->begin(0.1);
        exchange->open();
        exchange->tell({group.rank() + 0.25 * step, group.rank() == step % ranks ? 1.0 : 0.0});
        for (size_t b = 0; b < exchange->buckets().size(); b++) exchange->ready(b);
        exchange->finish();
        ASSERT_NE(exchange->told(), nullptr);
        ASSERT_EQ(*exchange->told(), (Told{ranks * (ranks - 1) / 2 + 0.25 * step * ranks, 1.0})) << "step " << step;
      }
      group.barrier("told");
    }));
}

TEST(Exchange, OptimizerStateExistsOncePerMachineWhenShared) {
  const Layout layout = small_model();
  std::atomic<size_t> total{0};
  expect_all_well(run_ranks(4, [&](Communicator& group) {
    total += make_exchange(group, layout, space::momentum(), {})->updater()->state_bytes();
  }));
  EXPECT_GE(total.load(), layout.bytes() - 64);
  EXPECT_LE(total.load(), layout.bytes() + 4 * 64);
}

}  // namespace
}  // namespace trireme::exchange::tests
