// label: unit
// The shared exchange over several machines: ranks as threads, a segment per machine, sockets between them.
#include "../comm/machines.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <chrono>
#include <cmath>
#include <stdexcept>
#include <thread>

#include <trireme/exchange/exchange.h>

namespace trireme::exchange::tests {
namespace {

using space::Layout;
using trireme::tests::expect_all_well;
using trireme::tests::OnMachine;
using trireme::tests::run_machines;

constexpr int kSteps = 18;  // beyond the plans of steps 4, 8 and 16
constexpr double kRate = 0.5;

double gradient(int rank, int step, size_t i) {
  return (rank + 1) * 0.125 + step * 0.25 + static_cast<double>(i % 64);
}  // sums are exact

/// What every parameter becomes: it begins at 0.
double expected(int ranks, size_t i, int steps = kSteps) {
  double value = 0;
  for (int step = 0; step < steps; step++)
    for (int rank = 0; rank < ranks; rank++) value -= kRate * gradient(rank, step, i);
  return value;
}

/// `later`: parameters are awaited in the next forward pass, first layers first, and this rank's bucket by bucket as it
/// uses them. `linger`: ranks with odd numbers go on using a bucket's parameters for a while after its gradients were
/// ready.
void train(const OnMachine& rank, const Layout& layout, const Options& options, bool later = false,
           bool linger = false) {
  const int ranks = rank.all.size(), me = rank.all.rank();
  const Group group(rank.all, rank.here, rank.lane, rank.all.topology().lanes());
  const auto exchange = make_exchange(group, layout, space::sgd(), options);
  const auto expect_part = [&](space::Range part, int step) {
    for (size_t slot = 0; slot < layout.size(); slot++) {
      const space::Range mine = intersect(part, layout[slot].range);
      for (size_t at = mine.begin; at < mine.end; at += 97 * sizeof(double))
        ASSERT_EQ(*reinterpret_cast<const double*>(exchange->flat().parameters() + at),
                  expected(ranks, (at - layout[slot].range.begin) / sizeof(double), step))
            << layout[slot].name;
    }
  };
  const auto expect_bucket = [&](size_t b, int step) { expect_part(exchange->flat().buckets()[b].range, step); };
  for (int step = 0; step < kSteps; step++) {
    exchange->begin(kRate);
    for (size_t b = exchange->flat().buckets().size(); later && step > 0 && b-- > 0;) {
      for (int third = 0; third < 3; third++) {
        const space::Range part = space::part_of(exchange->flat().buckets()[b].range, third, 3);
        exchange->await(part);
        expect_part(part, step);
      }
    }
    exchange->open();
    for (size_t b = 0; b < exchange->flat().buckets().size(); b++) {
      for (size_t slot = exchange->flat().buckets()[b].first; slot < exchange->flat().buckets()[b].last; slot++) {
        auto* const values = reinterpret_cast<double*>(exchange->flat().gradients() + layout[slot].range.begin);
        for (size_t i = 0; i < layout[slot].elements(); i++) values[i] = gradient(me, step, i);
        exchange->flat().present(slot);
      }
      if (b + 1 == exchange->flat().buckets().size()) exchange->tell({me + 0.5 * step, me == step % ranks ? 1.0 : 0.0});
      exchange->ready(b);
      if (linger && exchange->traits().patient && me % 2 == 1 && b + 1 < exchange->flat().buckets().size()) {
        std::this_thread::sleep_for(
            std::chrono::milliseconds(5));  // the delay that is tested, not a wait: time for the others to go too far
        expect_bucket(b, step);
      }
    }
    exchange->close();
    if (!later) exchange->land();
    ASSERT_EQ(exchange->outcome().told, (Told{ranks * (ranks - 1) / 2 + 0.5 * step * ranks, 1.0}))
        << "rank " << me << ", step " << step;
  }
  exchange->land();
  ASSERT_TRUE(exchange->outcome().landed);
  for (size_t slot = 0; slot < layout.size(); slot++)
    for (size_t i = 0; i < layout[slot].elements(); i++)
      ASSERT_EQ(reinterpret_cast<const double*>(exchange->flat().parameters() + layout[slot].range.begin)[i],
                expected(ranks, i))
          << layout[slot].name;
  rank.all.barrier("read");
}

const std::vector<std::vector<int>> kShapes = {{0, 1}, {0, 0, 1, 1}, {0, 0, 1}, {0, 1, 1, 2}, {0, 0, 0, 1, 1, 1}};

TEST(SharedOverMachines, SumsGradientsAndWhatRanksTell) {
  const Layout layout(
      {{"a", DType::f64, {3000}}, {"b", DType::f64, {7}}, {"c", DType::f64, {300, 900}}, {"d", DType::f64, {100}}});
  for (const auto& machine_of : kShapes)
    for (bool overlap : {false, true})
      expect_all_well(run_machines(machine_of, [&](const OnMachine& rank) {
        train(rank, layout, {.bucket_bytes = 20000, .overlap = overlap});
      }));
}

/// More pieces than one per bucket, in whatever order the measured times lead to.
TEST(SharedOverMachines, ParametersLandDuringTheNextForwardPass) {
  const Layout layout({{"first", DType::f64, {300, 700}},
                       {"b", DType::f64, {7}},
                       {"c", DType::f64, {400, 900}},
                       {"last", DType::f64, {100}}});
  for (const auto& machine_of : kShapes)
    expect_all_well(
        run_machines(machine_of, [&](const OnMachine& rank) { train(rank, layout, {.bucket_bytes = 20000}, true); }));
}

TEST(SharedOverMachines, ParametersStayUntilAllRanksHaveComeToTheNextBucket) {
  const Layout layout({{"first", DType::f64, {300}},
                       {"b", DType::f64, {5000}},
                       {"c", DType::f64, {4000}},
                       {"last", DType::f64, {3000}}});
  for (const auto& machine_of : kShapes)
    expect_all_well(run_machines(
        machine_of, [&](const OnMachine& rank) { train(rank, layout, {.bucket_bytes = 20000}, false, true); }));
}

/// Pieces of one slot land one by one, and each belongs to the same step of the slot; a slot without a gradient
/// anywhere does not count it.
TEST(SharedOverMachines, AdamCountsTheStepsOfEachSlot) {
  const Layout layout({{"always", DType::f64, {5}}, {"large", DType::f64, {300, 900}}, {"late", DType::f64, {30}}});
  const auto has = [](int rank, int step, size_t slot) {
    return slot == 0 || (slot == 1 ? step % 3 == rank % 2 : step >= 7);
  };
  const auto any = [&](int ranks, int step, size_t slot) {
    return has(0, step, slot) || (ranks > 1 && has(1, step, slot));
  };
  const auto wanted = [&](int ranks, size_t slot, size_t i) {  // torch.optim.Adam's formula
    double p = 0, m = 0, v = 0, power1 = 1, power2 = 1;
    for (int step = 0; step < kSteps; step++) {
      if (!any(ranks, step, slot)) continue;
      double g = 0;
      for (int rank = 0; rank < ranks; rank++) g += has(rank, step, slot) ? gradient(rank, step, i) : 0;
      m = 0.9 * m + (1 - 0.9) * g;
      v = 0.999 * v + (1 - 0.999) * g * g;
      power1 *= 0.9, power2 *= 0.999;
      p -= 0.01 / (1 - power1) * m / (std::sqrt(v) / std::sqrt(1 - power2) + 1e-8);
    }
    return p;
  };
  for (const auto& machine_of : kShapes)
    expect_all_well(run_machines(machine_of, [&](const OnMachine& rank) {
      const int ranks = rank.all.size(), me = rank.all.rank();
      const auto exchange = make_exchange(Group(rank.all, rank.here, rank.lane, rank.all.topology().lanes()), layout,
                                          space::adam(), {.bucket_bytes = 20000});
      for (int step = 0; step < kSteps; step++) {
        exchange->begin(0.01);
        exchange->open();
        for (size_t slot = 0; slot < layout.size(); slot++) {
          auto* const values = reinterpret_cast<double*>(exchange->flat().gradients() + layout[slot].range.begin);
          for (size_t i = 0; i < layout[slot].elements(); i++) values[i] = gradient(me, step, i);
          if (has(me, step, slot)) exchange->flat().present(slot);
        }
        for (size_t b = 0; b < exchange->flat().buckets().size(); b++) exchange->ready(b);
        exchange->close();
        exchange->land();
      }
      for (size_t slot = 0; slot < layout.size(); slot++)
        for (size_t i = 0; i < layout[slot].elements(); i += 61)
          ASSERT_NEAR(reinterpret_cast<const double*>(exchange->flat().parameters() + layout[slot].range.begin)[i],
                      wanted(ranks, slot, i), 1e-12)
              << layout[slot].name << ' ' << i;
      rank.all.barrier("read");
    }));
}

/// Ranks leave in the middle of a step, with pieces on their way that point into what they destroy.
TEST(SharedOverMachines, WhoeverIsLeftAloneHearsIt) {
  const Layout layout({{"a", DType::f64, {3000}}, {"b", DType::f64, {300, 900}}});
  const auto outcomes = run_machines({0, 1}, [&](const OnMachine& rank) {
    const auto exchange =
        make_exchange(Group(rank.all, rank.here, rank.lane, 1), layout, space::sgd(), {.bucket_bytes = 20000});
    exchange->begin(kRate);
    exchange->open();
    for (size_t slot = 0; slot < layout.size(); slot++) exchange->flat().present(slot);
    exchange->ready(0);
    if (rank.all.rank() == 1) throw std::runtime_error("this rank has had enough");
    exchange->ready(1);
    exchange->close();
    exchange->land();
  });
  ASSERT_TRUE(outcomes[0]);
  trireme::tests::expect_error<PeerLost>(outcomes[0], {"rank 1"});
  EXPECT_THROW(std::rethrow_exception(outcomes[1]), std::runtime_error);
}

/// One line of parameters: most lanes have nothing to send, and what ranks tell travels all the same.
TEST(SharedOverMachines, ATinyModelLeavesLanesEmpty) {
  const Layout layout({{"alone", DType::f64, {2}}});
  for (const auto& machine_of : kShapes)
    expect_all_well(run_machines(machine_of, [&](const OnMachine& rank) { train(rank, layout, {}); }));
}

}  // namespace
}  // namespace trireme::exchange::tests
