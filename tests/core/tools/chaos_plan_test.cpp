// label: unit
// What `trireme chaos` does is its seed's, whatever happens meanwhile.
#include <gtest/gtest.h>
#include <tools/chaos_plan.h>

#include <algorithm>
#include <numeric>
#include <set>

namespace trireme::tools {
namespace {

TEST(ChaosPlan, IsAFunctionOfTheSeed) {
  const PlanOptions options{.seed = 3, .kills = 20, .stops = 5};
  EXPECT_EQ(plan_of(options), plan_of(options));
  std::set<std::vector<double>> different;
  for (uint64_t seed = 0; seed < 50; seed++) {
    std::vector<double> choices;
    for (const Blow& blow : plan_of({.seed = seed, .kills = 4})) choices.push_back(blow.choice);
    different.insert(choices);
  }
  EXPECT_EQ(different.size(), 50u);
}

TEST(ChaosPlan, StaysAsItIs) {  // plans of old reports can be run again
  const std::vector<Blow> plan = plan_of({.seed = 1, .kills = 2, .stops = 1, .every = 1, .stop_for = 1});
  ASSERT_EQ(plan.size(), 3u);
  std::vector<int> kinds;
  std::vector<double> pauses;
  for (const Blow& blow : plan) kinds.push_back(blow.kind), pauses.push_back(blow.after);
  EXPECT_EQ(kinds, (std::vector<int>{Blow::kill, Blow::stop, Blow::kill}));
  EXPECT_NEAR(pauses[0], 1.060337, 1e-4);
  EXPECT_NEAR(pauses[2], 1.475980, 1e-4);
}

TEST(ChaosPlan, HasWhatWasAskedForInAnyOrder) {
  for (uint64_t seed = 0; seed < 200; seed++) {
    const std::vector<Blow> plan = plan_of({.seed = seed, .kills = 12, .stops = 8, .every = 2, .stop_for = 0.5});
    ASSERT_EQ(plan.size(), 20u);
    EXPECT_EQ(std::count_if(plan.begin(), plan.end(), [](const Blow& b) { return b.kind == Blow::kill; }), 12);
    for (const Blow& blow : plan) {
      EXPECT_GE(blow.after, 1.0);
      EXPECT_LT(blow.after, 3.0);
      EXPECT_GE(blow.choice, 0.0);
      EXPECT_LT(blow.choice, 1.0);
      if (blow.kind == Blow::kill)
        EXPECT_EQ(blow.lasts, 0.0);
      else
        EXPECT_TRUE(blow.lasts >= 0.25 && blow.lasts < 0.75) << blow.lasts;
    }
  }
  EXPECT_TRUE(plan_of({.kills = 0, .stops = 0}).empty());
}

TEST(ChaosPlan, ComesAsOftenAsWasSaid) {
  const std::vector<Blow> plan = plan_of({.seed = 9, .kills = 4000, .every = 0.25});
  EXPECT_NEAR(duration_of(plan) / 4000, 0.25, 0.005);
}

TEST(ChaosPlan, HitsEverybodyAlike) {
  std::vector<int> hits(4);
  for (const Blow& blow : plan_of({.seed = 5, .kills = 4000})) hits[victim_of(blow, 4)]++;
  for (int count : hits) EXPECT_NEAR(count, 1000, 120);  // four standard deviations
  EXPECT_EQ(victim_of({.choice = 0.999999}, 1), 0u);
  EXPECT_EQ(victim_of({.choice = 0.75}, 4), 3u);
}

TEST(ChaosPlan, SummariesAreOfWhatWasMeasured) {
  std::vector<double> values(100);
  std::iota(values.begin(), values.end(), 1.0);
  std::reverse(values.begin(), values.end());
  const Summary summary = summary_of(values);
  EXPECT_EQ(summary.tries, 100u);
  EXPECT_DOUBLE_EQ(summary.median, 50.5);
  EXPECT_DOUBLE_EQ(summary.p99, 99);
  EXPECT_DOUBLE_EQ(summary.most, 100);
  EXPECT_DOUBLE_EQ(summary_of({3, 1, 2}).median, 2);
  EXPECT_DOUBLE_EQ(summary_of({3, 1, 2}).p99, 3);
  EXPECT_EQ(summary_of({}).tries, 0u);
}

TEST(ChaosPlan, AStepsOwnTimeDoesNotCount) {
  const Struck slow{.step_ms = 10, .next_ms = 35}, fast{.step_ms = 10, .next_ms = 7}, unseen{.step_ms = 10};
  EXPECT_DOUBLE_EQ(slow.beyond_ms().value(), 25);
  EXPECT_DOUBLE_EQ(fast.beyond_ms().value(), 0);
  EXPECT_FALSE(unseen.beyond_ms());
  const Struck stopped{.blow = {.kind = Blow::stop}, .next_ms = 500};
  EXPECT_EQ(beyond_of({slow, unseen, stopped, fast}, Blow::kill), (std::vector<double>{25, 0}));
  EXPECT_NE(table_of({slow, unseen, stopped, fast}).find("of 2 tries"), std::string::npos);
}

}  // namespace
}  // namespace trireme::tools
