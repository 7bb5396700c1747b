// label: unit
// The rules: when a gradient counts, who may begin, and why.
#include <gtest/gtest.h>

#include <array>

#include <trireme/base/error.h>
#include <trireme/ps/consistency.h>
#include <trireme/ps/plan.h>
#include <trireme/ps/service.h>

namespace trireme::ps::tests {
namespace {

TEST(JudgePush, TogetherHoldsUntilAllAreThere) {
  const Rules rules{.workers = 3, .order = Order::together};
  const Decision held = judge_push(rules, {.worker = 0, .missing = 2});
  EXPECT_EQ(held.verdict, Verdict::hold);
  EXPECT_EQ(held.reason(), "worker 2 has not pushed yet");
  EXPECT_EQ(judge_push(rules, {.worker = 0, .missing = -1}).verdict, Verdict::apply);
}

TEST(JudgePush, RotatingHoldsUntilItsTurn) {
  const Rules rules{.workers = 3, .order = Order::rotating};
  const Decision held = judge_push(rules, {.worker = 2, .turn = 1});
  EXPECT_EQ(held.verdict, Verdict::hold);
  EXPECT_EQ(held.reason(), "it is worker 1's turn");
  EXPECT_EQ(judge_push(rules, {.worker = 1, .turn = 1}).verdict, Verdict::apply);
}

TEST(JudgePush, OnArrivalAppliesUnlessDelayedOrRepeated) {
  const Rules rules{.workers = 3, .order = Order::on_arrival};
  EXPECT_EQ(judge_push(rules, {.worker = 2}).verdict, Verdict::apply);
  EXPECT_EQ(judge_push(rules, {.worker = 2, .repeated = true}).verdict, Verdict::drop);
  const Decision delayed = judge_push(rules, {.worker = 2, .delay = 0.05});
  EXPECT_EQ(delayed.verdict, Verdict::hold);
  EXPECT_NE(delayed.reason().find("0.050 s"), std::string::npos) << delayed.reason();
}

TEST(JudgeBegin, HoldsWhoIsMoreThanTheBoundAhead) {
  const Rules rules{.workers = 3, .order = Order::on_arrival, .bound = 2};
  const std::array<int64_t, 3> clocks = {5, 3, 4};
  EXPECT_EQ(judge_begin(rules, clocks, 0, 5).verdict, Verdict::apply);  // 2 ahead of worker 1
  const std::array<int64_t, 3> later = {6, 3, 4};
  const Decision held = judge_begin(rules, later, 0, 6);
  EXPECT_EQ(held.verdict, Verdict::hold);
  EXPECT_EQ(held.reason(), "it would be 3 steps ahead of worker 1");
  const std::array<int64_t, 3> gone = {6, kGone, 4};
  EXPECT_EQ(judge_begin(rules, gone, 0, 6).verdict, Verdict::apply);  // nobody waits for one that has left
}

TEST(JudgeBegin, WithoutABoundNobodyWaits) {
  const std::array<int64_t, 2> clocks = {1000, 0};
  EXPECT_EQ(judge_begin({.workers = 2, .order = Order::on_arrival}, clocks, 0, 1000).verdict, Verdict::apply);
}

TEST(JudgeLock, OneAtATime) {
  EXPECT_EQ(judge_lock(-1, 1).verdict, Verdict::apply);
  EXPECT_EQ(judge_lock(1, 1).verdict, Verdict::apply);
  EXPECT_EQ(judge_lock(0, 1).verdict, Verdict::drop);
  EXPECT_EQ(judge_lock(0, 1).reason(), "worker 0 has the update lock");
}

TEST(RateFor, DividesByOnePlusStaleness) {
  EXPECT_DOUBLE_EQ(rate_for({.stale = Stale::inverse}, 0.3, 2), 0.1);
  EXPECT_DOUBLE_EQ(rate_for({.stale = Stale::full}, 0.3, 2), 0.3);
  EXPECT_DOUBLE_EQ(rate_for({.stale = Stale::inverse, .step_updates = 4}, 0.3, 2), 0.2) << "half a step old";
}

TEST(StaleNamed, KnowsItsNames) {
  for (const std::string& name : stale_names()) EXPECT_EQ(name_of(stale_named(name)), name);
  EXPECT_THROW(stale_named("invers"), InvalidArgument);
}

TEST(PlanChunks, CoversEveryByteOnceAndSharesEvenly) {
  const space::Layout layout(
      {{"a", DType::f32, {1000}}, {"b", DType::f32, {77, 3}}, {"c", DType::f64, {129}}, {"d", DType::f32, {5000}}});
  for (int servers : {1, 2, 3, 7})
    for (size_t chunk : {64ul, 1000ul, 1ul << 20}) {
      const auto buckets = plan_buckets(layout, 8192);
      const auto chunks = plan_chunks(layout, buckets, servers, chunk);
      std::vector<int> covered(layout.bytes(), 0);
      std::vector<size_t> load(static_cast<size_t>(servers));
      for (size_t i = 0; i < chunks.size(); i++) {
        EXPECT_EQ(chunks[i].index, i);
        EXPECT_LE(chunks[i].range.size(), std::max<size_t>(64, chunk));
        for (size_t at = chunks[i].range.begin; at < chunks[i].range.end; at++) covered[at]++;
        load[static_cast<size_t>(chunks[i].server)] += chunks[i].range.size();
        for (size_t slot = 0; slot < layout.size(); slot++) {
          const bool part = !intersect(chunks[i].range, layout[slot].range).empty();
          const bool listed = slot >= chunks[i].first && slot < chunks[i].last;
          EXPECT_TRUE(!part || listed) << "slot " << slot << " of chunk " << i;
        }
      }
      for (const space::Slot& slot : layout.slots())
        for (size_t at = slot.range.begin; at < slot.range.end; at++) ASSERT_EQ(covered[at], 1) << "byte " << at;
      const auto [least, most] = std::minmax_element(load.begin(), load.end());
      EXPECT_LE(*most - *least, 2 * space::kLine * buckets.size());
    }
}

TEST(SeenIds, TellsRepetitionsApart) {
  SeenIds seen;
  EXPECT_FALSE(seen.add(0));
  for (uint64_t id : {1, 2, 5, 3}) EXPECT_TRUE(seen.add(id));
  for (uint64_t id : {1, 2, 5, 3}) EXPECT_FALSE(seen.add(id));
  EXPECT_TRUE(seen.add(4));
  EXPECT_TRUE(seen.add(5000));
  EXPECT_FALSE(seen.add(5000));
  EXPECT_FALSE(seen.add(4));    // too old to tell
  EXPECT_TRUE(seen.add(4999));  // in the window, never seen
  EXPECT_TRUE(seen.add(1u << 30));
  EXPECT_FALSE(seen.add(1u << 30));
  for (uint64_t id = (1u << 30) + 1; id < (1u << 30) + 10000; id++) ASSERT_TRUE(seen.add(id));
  for (uint64_t id = (1u << 30) + 9000; id < (1u << 30) + 10000; id++) ASSERT_FALSE(seen.add(id));
}

}  // namespace
}  // namespace trireme::ps::tests
