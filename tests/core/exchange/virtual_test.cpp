// label: unit
// Virtual workers: the bits of parameters and losses do not depend on how many ranks there are, or on how many
// machines. Ranks are threads, machines have segments of their own and sockets between them.
#include <fmt/ranges.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <functional>
#include <mutex>
#include <optional>
#include <random>

#include <trireme/exchange/exchange.h>

#include "../comm/machines.h"

namespace trireme::exchange::tests {
namespace {

using space::Layout;
using trireme::tests::expect_all_well;
using trireme::tests::OnMachine;
using trireme::tests::run_machines;

constexpr int kSteps = 6;  // beyond the plan of step 4

const Layout kLayout(
    {{"a", DType::f32, {1500}}, {"b", DType::f32, {7}}, {"c", DType::f32, {30, 90}}, {"d", DType::f32, {33}}});

/// Of a piece: numbers of many sizes, so that another order of sums shows.
std::vector<float> gradient_of(int step, int piece, size_t slot) {
  std::mt19937 random(static_cast<unsigned>(step * 1000 + piece * 10) + static_cast<unsigned>(slot));
  std::normal_distribution<float> normal;
  std::vector<float> values(kLayout[slot].elements());
  for (float& value : values) value = std::ldexp(normal(random), static_cast<int>(random() % 12) - 6);
  return values;
}
/// Some pieces have nothing for some slots; of slot 1 nobody has anything in step 3.
bool has_gradient(int step, int piece, size_t slot) {
  return (piece + step + static_cast<int>(slot)) % 5 != 0 && (slot != 1 || step != 3);
}
double loss_of(int step, int piece) { return std::sin(step * 17.0 + piece) / 3; }

struct Ended {
  std::vector<std::byte> parameters;
  std::vector<double> losses;
  bool operator==(const Ended&) const = default;
};

/// One rank's part of a training: what Parallel does with the gradients of a run of pieces.
class Worker {
 public:
  Worker(Exchange& exchange, int pieces, int rank)
      : exchange_(exchange), pieces_(pieces), run_(exchange.virtual_workers()->runs()[static_cast<size_t>(rank)]) {}

  void compute(int step) {
    for (int piece = run_.begin; piece < run_.end; piece++) {
      const Turn turn = turn_of(pieces_, run_, piece);
      for (size_t slot = 0; slot < kLayout.size(); slot++) {
        if (has_gradient(step, piece, slot)) put(gradient_of(step, piece, slot).data(), slot, turn.seat);
        for (int fold = 0; fold < turn.folds; fold++) {
          const int seat = turn.seat - fold;
          if (!at(seat, slot)) continue;
          put(values(slot, seat), slot, seat - 1);
          at(seat, slot) = false;
          exchange_.flat().absent(slot, seat);
        }
      }
      exchange_.virtual_workers()->tell(piece, loss_of(step, piece));
    }
  }

 private:
  float* values(size_t slot, int seat) {
    return reinterpret_cast<float*>(exchange_.flat().gradients(seat) + kLayout[slot].range.begin);
  }
  std::vector<bool>::reference at(int seat, size_t slot) {
    return filled_[static_cast<size_t>(seat) * kLayout.size() + slot];
  }
  void put(const float* from, size_t slot, int seat) {
    float* const to = values(slot, seat);
    for (size_t i = 0; i < kLayout[slot].elements(); i++) to[i] = at(seat, slot) ? to[i] + from[i] : from[i];
    at(seat, slot) = true;
    exchange_.flat().present(slot, seat);
  }

  Exchange& exchange_;
  int pieces_;
  Pieces run_;
  std::vector<bool> filled_ = std::vector<bool>(16 * kLayout.size());
};

/// `shares`: in every other step the work is divided by these instead.
Ended train(const std::vector<int>& machine_of, const Options& options, const std::vector<double>& shares = {}) {
  Ended ended;
  std::mutex mutex;
  expect_all_well(run_machines(machine_of, [&](const OnMachine& rank) {
    const Group group(rank.all, rank.here, rank.lane, rank.all.topology().lanes());
    const auto exchange = make_exchange(group, kLayout, space::momentum({.lr = 0.1}), options);
    if (rank.here.rank() == 0) std::memset(exchange->flat().parameters(), 0, kLayout.bytes());
    exchange->state().publish();
    std::vector<double> losses;
    const std::vector<Pieces> even = exchange->virtual_workers()->runs();
    for (int step = 0; step < kSteps; step++) {
      if (!shares.empty() && step > 0)
        exchange->virtual_workers()->divide(step % 2 == 0 ? even : runs_by_share(options.virtual_workers, shares));
      EXPECT_EQ(exchange->source().run(), exchange->virtual_workers()->runs()[static_cast<size_t>(rank.all.rank())]);
      exchange->begin(0.1);
      exchange->open();
      Worker(*exchange, options.virtual_workers, rank.all.rank()).compute(step);
      for (size_t b = 0; b < exchange->flat().buckets().size(); b++) exchange->ready(b);
      exchange->close();
      exchange->land();
      EXPECT_TRUE(exchange->outcome().sound);
      losses.push_back(exchange->outcome().told[0]);
    }
    {
      const std::lock_guard lock(mutex);
      const std::vector<std::byte> parameters(exchange->flat().parameters(),
                                              exchange->flat().parameters() + kLayout.bytes());
      if (ended.parameters.empty()) ended = {parameters, losses};
      EXPECT_TRUE(ended == (Ended{parameters, losses})) << "rank " << rank.all.rank();
    }
    rank.all.barrier("read");
  }));
  return ended;
}

/// The same in plain loops: the tree, then momentum.
Ended reference(int pieces) {
  std::vector<std::byte> parameters(kLayout.bytes());
  std::vector<double> losses;
  std::vector<std::vector<float>> momenta(kLayout.size());
  using Leaf = std::optional<std::vector<float>>;
  const std::function<Leaf(std::vector<Leaf>&, size_t, size_t)> sum = [&](std::vector<Leaf>& all, size_t begin,
                                                                          size_t end) -> Leaf {
    if (end - begin == 1) return all[begin];
    size_t half = 1;
    while (2 * half < end - begin) half *= 2;
    Leaf left = sum(all, begin, begin + half), right = sum(all, begin + half, end);
    if (!left || !right) return left ? left : right;
    for (size_t i = 0; i < left->size(); i++) (*left)[i] += (*right)[i];
    return left;
  };
  for (int step = 0; step < kSteps; step++) {
    std::vector<Leaf> sums;
    for (size_t slot = 0; slot < kLayout.size(); slot++) {
      std::vector<Leaf> leaves(static_cast<size_t>(pieces));
      for (int piece = 0; piece < pieces; piece++)
        if (has_gradient(step, piece, slot)) leaves[static_cast<size_t>(piece)] = gradient_of(step, piece, slot);
      sums.push_back(sum(leaves, 0, leaves.size()));
    }
    for (size_t slot = 0; slot < kLayout.size(); slot++) {
      if (!sums[slot]) continue;
      momenta[slot].resize(kLayout[slot].elements());
      auto* const p = reinterpret_cast<float*>(parameters.data() + kLayout[slot].range.begin);
      for (size_t i = 0; i < kLayout[slot].elements(); i++) {
        momenta[slot][i] = 0.9F * momenta[slot][i] + (*sums[slot])[i];
        p[i] -= 0.1F * momenta[slot][i];
      }
    }
    std::vector<double> leaves;
    for (int piece = 0; piece < pieces; piece++) leaves.push_back(loss_of(step, piece));
    losses.push_back(sum_over(leaves));
  }
  return {parameters, losses};
}

const std::vector<std::vector<int>> kCrews = {{0},          {0, 0},    {0, 0, 0},    {0, 0, 0, 0}, {0, 1},
                                              {0, 0, 1, 1}, {0, 1, 1}, {0, 1, 0, 1}, {0, 1, 2},    {0, 0, 1, 2}};

TEST(Virtual, EveryCrewEndsWithTheBitsOfAPlainLoop) {
  for (const int pieces : {4, 5, 8}) {
    const Ended wanted = reference(pieces);
    for (const auto& machine_of : kCrews)
      EXPECT_TRUE(train(machine_of, {.bucket_bytes = 6000, .virtual_workers = pieces}) == wanted)
          << pieces << " pieces, ranks on " << fmt::format("{}", fmt::join(machine_of, ""));
  }
}

TEST(Virtual, ClippedGradientsAndLooksForNanToo) {
  for (Options options : {Options{.bucket_bytes = 6000, .clip = 0.5, .virtual_workers = 4},
                          Options{.bucket_bytes = 6000, .clip = 0.5, .on_nan = OnNan::ignore, .virtual_workers = 4},
                          Options{.bucket_bytes = 6000, .on_nan = OnNan::skip, .virtual_workers = 4}}) {
    const Ended alone = train({0}, options);
    EXPECT_EQ(alone == reference(4), options.clip == 0);
    for (const auto& machine_of : kCrews)
      EXPECT_TRUE(train(machine_of, options) == alone)
          << name_of(options.on_nan) << ", ranks on " << fmt::format("{}", fmt::join(machine_of, ""));
  }
}

TEST(Virtual, TheDivisionMayChangeBetweenSteps) {
  const Ended wanted = reference(8);
  for (const auto& machine_of : kCrews) {
    std::vector<double> shares(machine_of.size(), 1);
    shares[0] = 5;
    EXPECT_TRUE(train(machine_of, {.bucket_bytes = 6000, .virtual_workers = 8}, shares) == wanted);
  }
}

TEST(Virtual, WhatCannotBeDividedIsRefused) {
  const auto refused = [](const std::vector<int>& machine_of, const Options& options) {
    for (const auto& outcome : run_machines(machine_of, [&](const OnMachine& rank) {
           EXPECT_THROW(make_exchange(Group(rank.all, rank.here, rank.lane, rank.all.topology().lanes()), kLayout,
                                      space::sgd(), options),
                        InvalidArgument);
         }))
      expect_all_well({outcome});
  };
  refused({0, 0, 0}, {.virtual_workers = 2});
  refused({0, 1}, {.virtual_workers = 1});
  refused({0}, {.virtual_workers = -1});
  refused({0}, {.virtual_workers = kMostPieces + 1});
  refused({0}, {.sync = Sync::allreduce, .virtual_workers = 2});
  refused({0, 0}, {.zero = 1, .virtual_workers = 2});
  expect_all_well(run_machines({0, 0}, [&](const OnMachine& rank) {
    const Group group(rank.all, rank.here, rank.lane, rank.all.topology().lanes());
    const auto exchange = make_exchange(group, kLayout, space::sgd(), {.virtual_workers = 4});
    EXPECT_THROW(exchange->virtual_workers()->divide({{0, 2}, {3, 4}}), InvalidArgument);
    EXPECT_THROW(exchange->virtual_workers()->divide({{0, 4}}), InvalidArgument);
    EXPECT_THROW(exchange->virtual_workers()->divide({{0, 4}, {4, 4}}), InvalidArgument);
    const auto plain = make_exchange(group, kLayout, space::sgd(), {});
    EXPECT_EQ(plain->virtual_workers(), nullptr);
  }));
}

}  // namespace
}  // namespace trireme::exchange::tests
