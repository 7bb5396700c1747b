// label: unit
// Clipping by the norm of the whole gradient, and gradients that are not finite: on one machine and on several.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include <trireme/exchange/exchange.h>

#include "crews.h"

namespace trireme::exchange::tests {
namespace {

using space::Layout;
using trireme::tests::expect_all_well;
using trireme::tests::OnMachine;
using trireme::tests::run_machines;

constexpr int kSteps = 18;  // beyond the plans of steps 4, 8 and 16
constexpr double kRate = 0.1, kClip = 40;

Layout model() {
  return Layout({{"a", DType::f64, {3000}},
                 {"b", DType::f64, {7}},
                 {"c", DType::f64, {300, 900}},
                 {"unused", DType::f64, {50}},
                 {"d", DType::f64, {100}}});
}

/// Large in some steps, small in others.
double gradient(int rank, int step, size_t slot, size_t i) {
  return std::sin(0.3 * static_cast<double>(i) + static_cast<double>(slot) + 0.7 * rank) *
         (step % 3 == 0 ? 0.01 : 0.2 + 0.05 * rank);
}
bool has_gradient(int rank, int step, size_t slot) {
  return slot != 3 && !(slot == 2 && step % 4 == 1 && rank % 2 == 0) && !(slot == 0 && step == 6);
}

using Values = std::vector<std::vector<double>>;

/// One loop over everything, with torch's formula.
Values reference(const Layout& layout, int ranks, int& clipped) {
  Values p;
  for (const space::Slot& slot : layout.slots()) p.emplace_back(slot.elements(), 1.0);
  clipped = 0;
  for (int step = 0; step < kSteps; step++) {
    Values g;
    double squares = 0;
    for (size_t slot = 0; slot < layout.size(); slot++) {
      g.emplace_back(layout[slot].elements(), 0.0);
      for (int rank = 0; rank < ranks; rank++)
        for (size_t i = 0; has_gradient(rank, step, slot) && i < g[slot].size(); i++)
          g[slot][i] += gradient(rank, step, slot, i);
      for (double value : g[slot]) squares += value * value;
    }
    const double factor = std::min(1.0, kClip / (std::sqrt(squares) + 1e-6));
    clipped += factor < 1;
    for (size_t slot = 0; slot < layout.size(); slot++)
      for (size_t i = 0; i < g[slot].size(); i++) p[slot][i] -= kRate * factor * g[slot][i];
  }
  return p;
}

double* elements(std::byte* flat, const space::Slot& slot) {
  return reinterpret_cast<double*>(flat + slot.range.begin);
}

std::unique_ptr<Exchange> make(const OnMachine& rank, const Layout& layout, const Options& options,
                               const space::UpdaterOptions& optimizer = space::sgd()) {
  auto exchange = make_exchange(group_of(rank), layout, optimizer, options);
  if (rank.all.rank() == 0 || !exchange->traits().shared)
    for (const space::Slot& slot : layout.slots())
      std::fill_n(elements(exchange->flat().parameters(), slot), slot.elements(), 1.0);
  exchange->state().publish();
  return exchange;
}

void step(Exchange& exchange, const std::function<bool(size_t slot)>& present,
          const std::function<double(size_t slot, size_t i)>& value, bool later) {
  exchange.begin(kRate);
  exchange.open();
  for (size_t b = 0; b < exchange.flat().buckets().size(); b++) {
    for (size_t slot = exchange.flat().buckets()[b].first; slot < exchange.flat().buckets()[b].last; slot++) {
      const space::Slot& s = exchange.flat().layout()[slot];
      for (size_t i = 0; i < s.elements(); i++)
        elements(exchange.flat().gradients(), s)[i] = present(slot) ? value(slot, i) : 1e9;
      if (present(slot)) exchange.flat().present(slot);
    }
    if (b + 1 == exchange.flat().buckets().size()) exchange.tell({1, 0});
    exchange.ready(b);
  }
  exchange.close();
  if (!later) exchange.land();
}

const std::vector<std::vector<int>> kShapes = {{0}, {0, 0, 0}, {0, 1}, {0, 0, 1, 1}, {0, 0, 1}, {0, 1, 1, 2}};

struct Mode {
  Sync sync;
  int zero = 0;
};

std::vector<Mode> modes_for(const std::vector<int>& machine_of) {
  std::vector<Mode> modes = {{Sync::shared}, {Sync::allreduce}, {Sync::central}};
  // Every stage with one rank per machine, and each of them on one other shape.
  const int only = machine_of.back() == 0 ? 2 : static_cast<int>(machine_of.size() + machine_of.back()) % 3 + 1;
  for (int zero : {1, 2, 3})
    if (machine_of == std::vector{0, 1} || (machine_of.size() > 1 && zero == only))
      modes.push_back({Sync::shared, zero});
  if (machine_of.back() == 0 && machine_of.size() == 1)
    modes.push_back({Sync::hogwild}), modes.push_back({Sync::local_for(3)});
  return modes;
}

TEST(Clip, IsByTheNormOfTheSumOverAllRanks) {
  const Layout layout = model();
  for (const auto& machine_of : kShapes) {
    int clipped = 0;
    const Values wanted = reference(layout, static_cast<int>(machine_of.size()), clipped);
    ASSERT_GT(clipped, 3);
    ASSERT_LT(clipped, kSteps - 3);
    for (const auto& [sync, zero] : modes_for(machine_of))
      for (bool overlap : {false, true})
        expect_all_well(run_machines(machine_of, [&](const OnMachine& rank) {
          const int me = rank.all.rank();
          const auto exchange = make(
              rank, layout, {.sync = sync, .bucket_bytes = 20000, .overlap = overlap, .clip = kClip, .zero = zero});
          for (int t = 0; t < kSteps; t++) {
            step(
                *exchange, [&](size_t slot) { return has_gradient(me, t, slot); },
                [&](size_t slot, size_t i) { return gradient(me, t, slot, i); }, overlap);
            if (exchange->traits().tells) {
              ASSERT_EQ(exchange->outcome().told[0], rank.all.size());
            }
            exchange->land();
            ASSERT_TRUE(exchange->outcome().sound);
          }
          const Reading reading(*exchange);
          for (size_t slot = 0; slot < layout.size(); slot++)
            for (size_t i = 0; i < layout[slot].elements(); i++)
              ASSERT_NEAR(elements(exchange->flat().parameters(), layout[slot])[i], wanted[slot][i], 1e-11)
                  << name_of(sync) << " " << layout[slot].name << " " << i;
          rank.all.barrier("read");
        }));
  }
}

TEST(Clip, TwoRunsGiveTheSameBits) {
  const Layout layout = model();
  const auto run = [&](const std::vector<int>& machine_of) {
    std::vector<std::byte> bytes;
    expect_all_well(run_machines(machine_of, [&](const OnMachine& rank) {
      const auto exchange = make(rank, layout, {.bucket_bytes = 20000, .clip = kClip});
      for (int t = 0; t < kSteps; t++)
        step(
            *exchange, [](size_t) { return true; },
            [&](size_t slot, size_t i) { return gradient(rank.all.rank(), t, slot, i); }, false);
      if (rank.all.rank() == 0)
        bytes.assign(exchange->flat().parameters(), exchange->flat().parameters() + layout.bytes());
      rank.all.barrier("read");
    }));
    return bytes;
  };
  for (const auto& machine_of : {std::vector{0, 0, 0}, std::vector{0, 0, 1, 1}})
    EXPECT_EQ(run(machine_of), run(machine_of));
}

/// One element of one rank's gradient.
TEST(Sound, AllRanksHearOfAGradientThatIsNotFinite) {
  const Layout layout = model();
  const double wrong[] = {std::numeric_limits<double>::quiet_NaN(), std::numeric_limits<double>::infinity(),
                          -std::numeric_limits<double>::infinity()};
  for (const auto& machine_of : kShapes)
    for (const auto& [sync, zero] : modes_for(machine_of))
      for (double clip : {0.0, kClip})
        for (bool later : {false, true})
          for (size_t bad_slot : {size_t{1}, size_t{2}}) {
            const int culprit = static_cast<int>(machine_of.size()) - 1;
            const std::string where = fmt::format("{} zero {} with {} ranks, clip {}, slot {}", name_of(sync), zero,
                                                  machine_of.size(), clip, bad_slot);
            std::atomic<int> knowing{0}, in_sum{0};
            expect_all_well(run_machines(machine_of, [&](const OnMachine& rank) {
              const int me = rank.all.rank();
              const auto exchange =
                  make(rank, layout, {.sync = sync, .bucket_bytes = 20000, .clip = clip, .zero = zero});
              for (int t = 0; t < 6; t++) {
                const bool bad = t == 3;
                const size_t at = layout[bad_slot].elements() - 1;
                step(
                    *exchange, [](size_t slot) { return slot != 3; },
                    [&](size_t slot, size_t i) {
                      return bad && me == culprit && slot == bad_slot && i == at ? wrong[bad_slot - 1] : 0.5;
                    },
                    later);
                exchange->land();
                ASSERT_EQ(exchange->outcome().sound, !bad) << where << ", step " << t;
                if (!bad) continue;
                const auto flaw = exchange->flaw();
                if (flaw && flaw->own) {
                  EXPECT_EQ(me, culprit) << where;
                  EXPECT_EQ(flaw->slot, bad_slot) << where;
                  knowing++;
                }
                if (flaw && !flaw->own) in_sum++;
              }
              const Reading reading(*exchange);
              for (size_t slot = 0; slot < layout.size(); slot++)
                for (size_t i = 0; i < layout[slot].elements(); i++)
                  ASSERT_TRUE(std::isfinite(elements(exchange->flat().parameters(), layout[slot])[i])) << where;
              const double ranks = rank.all.size(), norm = 0.5 * ranks * std::sqrt(3000 + 7 + 270000 + 100),
                           factor = clip > 0 ? clip / (norm + 1e-6) : 1;
              const double five = 1 - 5 * kRate * 0.5 * ranks * factor, six = 1 - 6 * kRate * 0.5 * ranks;
              EXPECT_NEAR(elements(exchange->flat().parameters(), layout[4])[0], clip > 0 ? five : six, 1e-9)
                  << where << ": with clip nothing of the step is applied";
              EXPECT_NEAR(elements(exchange->flat().parameters(), layout[bad_slot])[layout[bad_slot].elements() - 1],
                          five, 1e-9)
                  << where;
              rank.all.barrier("read");
            }));
            EXPECT_GT(knowing + in_sum, 0) << where;
            EXPECT_TRUE(bad_slot == 2 || knowing == 1) << where << ": a small tensor is told apart in every mode";
          }
}

/// Nothing of the step is applied, on several machines too: parameters, and momentum, are those of the other steps.
TEST(Sound, SkippedItIsAsIfTheStepHadNotBeen) {
  const Layout layout = model();
  for (const auto& machine_of : kShapes)
    for (const auto& [sync, zero] : modes_for(machine_of)) {
      const auto run = [&](bool missing) {
        std::vector<std::byte> bytes;
        expect_all_well(run_machines(machine_of, [&](const OnMachine& rank) {
          const int me = rank.all.rank(), culprit = rank.all.size() - 1;
          const auto exchange =
              make(rank, layout, {.sync = sync, .bucket_bytes = 20000, .on_nan = OnNan::skip, .zero = zero},
                   space::momentum({.lr = kRate}));
          for (int t = 0; t < 6; t++) {
            const bool bad = t == 3;
            if (bad && missing) continue;
            step(
                *exchange, [](size_t slot) { return slot != 3; },
                [&](size_t slot, size_t i) {
                  return bad && me == culprit && slot == 1 && i == 6 ? std::nan("") : gradient(me, t, slot, i);
                },
                false);
            exchange->land();
            ASSERT_EQ(exchange->outcome().sound, !bad) << name_of(sync) << ", step " << t;
          }
          const Reading reading(*exchange);
          if (me == 0) bytes.assign(exchange->flat().parameters(), exchange->flat().parameters() + layout.bytes());
          rank.all.barrier("read");
        }));
        return bytes;
      };
      EXPECT_TRUE(run(false) == run(true)) << name_of(sync) << " with " << machine_of.size() << " ranks";
    }
}

TEST(Sound, NobodyLooksWhenNanIsIgnored) {
  const Layout layout = model();
  for (const Sync sync : {Sync::shared, Sync::allreduce, Sync::central})
    for (double clip : {0.0, kClip})
      expect_all_well(run_machines({0, 0}, [&](const OnMachine& rank) {
        const auto exchange = make(rank, layout, {.sync = sync, .clip = clip, .on_nan = OnNan::ignore});
        step(
            *exchange, [](size_t) { return true; }, [](size_t slot, size_t) { return slot == 4 ? std::nan("") : 0.5; },
            false);
        EXPECT_TRUE(exchange->outcome().sound);
        EXPECT_TRUE(std::isnan(elements(exchange->flat().parameters(), layout[4])[0]));
        EXPECT_LT(elements(exchange->flat().parameters(), layout[0])[0], 1)
            << "a norm that is not finite must not make the update 0";
        rank.all.barrier("read");
      }));
}

TEST(OnNan, NamesGoBothWays) {
  for (const std::string& name : on_nan_names()) EXPECT_EQ(name_of(on_nan_named(name)), name);
  EXPECT_THROW(on_nan_named("stopp"), InvalidArgument);
}

}  // namespace
}  // namespace trireme::exchange::tests
