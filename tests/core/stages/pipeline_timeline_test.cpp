// label: unit
// Timelines by hand, and their pictures.
#include <gtest/gtest.h>

#include <algorithm>

#include <trireme/base/error.h>
#include <trireme/stages/drawing.h>
#include <trireme/stages/schedule_file.h>
#include <trireme/stages/stage_costs.h>

namespace trireme::stages {
namespace {

Timeline played(const std::string& name, int stages, int micro, const Costs& costs = {}) {
  return simulate(make_schedule(parse_schedule(name), stages, micro), costs);
}

double end_of(const Timeline& timeline, int stage, const Action& action) {
  for (const Span& span : timeline.spans)
    if (span.stage == stage && span.action == action) return span.end;
  return -1;
}

TEST(Simulation, AsWorkedOutByHand) {
  const Timeline t = played("1f1b", 2, 2);  // stage 0: F0 F1 . . B0 B0 . B1 B1, stage 1: . F0 B0 B0 F1 B1 B1
  EXPECT_EQ(t.total, 9);
  EXPECT_NEAR(t.bubble, 1.0 / 3, 1e-12);
  EXPECT_EQ(end_of(t, 0, {Kind::forward, 1}), 2);
  EXPECT_EQ(end_of(t, 1, {Kind::backward, 0}), 4);
  EXPECT_EQ(end_of(t, 1, {Kind::backward, 1}), 7);
  EXPECT_EQ(end_of(t, 0, {Kind::backward, 0}), 6);
  EXPECT_EQ(end_of(t, 0, {Kind::backward, 1}), 9);
}

TEST(Simulation, CountsTransfers) {
  Costs costs;
  costs.transfer = 0.5;
  EXPECT_EQ(played("gpipe", 2, 1, costs).total, 1 + 0.5 + 1 + 2 + 0.5 + 2);
  costs.rendezvous = true;
  EXPECT_EQ(played("gpipe", 2, 1, costs).total, 1 + 0.5 + 1 + 2 + 0.5 + 2);
  // A sender that waits: its second forward begins when the first activation has been taken over.
  EXPECT_EQ(end_of(played("gpipe", 2, 2, costs), 0, {Kind::forward, 1}), 2.5);
  costs.rendezvous = false;
  EXPECT_EQ(end_of(played("gpipe", 2, 2, costs), 0, {Kind::forward, 1}), 2);
}

TEST(Simulation, RefusesWhatWaitsForEver) {
  const Schedule crossed = schedule_from_text(
      "trireme-schedule 1\nstages 2\nmicro 1\nstage 0: rg0 F0 sa0 B0\nstage 1: ra0 F0 B0 sg0\n", "x");
  EXPECT_THROW(simulate(crossed), InvalidArgument);
  Costs meeting;
  meeting.rendezvous = true;
  EXPECT_THROW(simulate(crossed, meeting), InvalidArgument);
}

TEST(Formula, HoldsWhereItIsGiven) {
  const auto of = [](const char* name, int p, int m, const Costs& c = {}) {
    return bubble_formula(parse_schedule(name), p, m, c);
  };
  EXPECT_DOUBLE_EQ(*of("gpipe", 4, 8), 3.0 / 11);
  EXPECT_DOUBLE_EQ(*of("1f1b", 4, 8), 3.0 / 11);
  EXPECT_DOUBLE_EQ(*of("interleaved:2", 4, 8), 3.0 / 19);
  EXPECT_DOUBLE_EQ(*of("zero-bubble", 4, 8), 3.0 / 27);
  EXPECT_DOUBLE_EQ(*of("1f1b", 1, 8), 0);
  EXPECT_FALSE(of("file:x", 4, 8));
  EXPECT_FALSE(of("zero-bubble", 4, 8, {1, 3, 1, 2}));
  EXPECT_FALSE(of("1f1b", 4, 8, {1, 2, 1, 1, 0.1}));
}

TEST(Warning, ComesWithFewMicroBatches) {
  const auto of = [](int p, int m) { return few_micro_batches(make_schedule(parse_schedule("1f1b"), p, m)); };
  EXPECT_EQ(of(4, 4), "");
  EXPECT_EQ(
      of(4, 2),
      "there are fewer micro-batches (2) than stages (4): the stages wait for 60 % of the time. Four times as many "
      "micro-batches as stages (16) leave 1f1b 16 %");
}

TEST(Recorded, BeginsAtZeroAndCountsWhatComputes) {
  const Schedule schedule = make_schedule(parse_schedule("gpipe"), 2, 1);
  const Timeline t = recorded(schedule, {{1, {Kind::receive_activation, 0}, 9, 11},
                                         {1, {Kind::forward, 0}, 11, 12},
                                         {0, {Kind::forward, 0}, 10, 11},
                                         {1, {Kind::backward, 0}, 12, 14},
                                         {0, {Kind::backward, 0}, 14, 16}});
  EXPECT_EQ(t.total, 6);
  EXPECT_DOUBLE_EQ(t.bubble, 0.5);
  EXPECT_EQ(t.spans[0], (Span{0, {Kind::forward, 0}, 0, 1}));
  EXPECT_EQ(t.spans[2], (Span{1, {Kind::receive_activation, 0}, -1, 1}));
  EXPECT_EQ(recorded(schedule, {}).total, 0);
}

TEST(Text, ShowsEachStage) {
  EXPECT_EQ(draw_text(played("1f1b", 2, 2), 40),
            "stage 0  F0 F1 ......B0--- ...B1--- \n"
            "stage 1  ...F0 B0--- F1 B1--- ......\n");
  EXPECT_EQ(draw_text(played("interleaved:2", 1, 1), 60), "stage 0  F0.0- F0.1- B0.1------- B0.0------- \n");
}

TEST(Text, GoesOnBelowAndThenHasLettersOnly) {
  EXPECT_EQ(draw_text(played("1f1b", 2, 2), 29),  // room for 20 columns: six of 3
            "stage 0  F0 F1 ......B0--- \n"
            "stage 1  ...F0 B0--- F1 B1-\n"
            "\n"
            "stage 0  ...B1--- \n"
            "stage 1  -- ......\n");
  const std::string letters = draw_text(played("1f1b", 2, 12), 40);
  EXPECT_EQ(letters.substr(0, letters.find('\n')), "stage 0  FF..B FB FB FB FB FB FB FB FB F");
  for (int micro : {1, 10, 100, 1000})
    for (int width : {1, 30, 80, 200}) {
      const std::string text = draw_text(played("zero-bubble", 3, micro), width);
      EXPECT_LE(std::count(text.begin(), text.end(), '\n'), 3 * 4 + 4 + 3) << micro << " " << width;
    }
}

TEST(Svg, HasABarForEachComputation) {
  const Timeline t = played("zero-bubble", 3, 4);
  const std::string svg = draw_svg("a < b & \"c\"", {{"planned", t, ""}, {"happened", t, "s"}});
  size_t bars = 0;
  for (size_t at = 0; (at = svg.find("</title></rect>", at)) != std::string::npos; at++) bars++;
  EXPECT_EQ(bars, 2u * 3 * 4 * 3);
  EXPECT_NE(svg.find("a &lt; b &amp; &quot;c&quot;"), std::string::npos);
  EXPECT_NE(svg.find("backward-weight of micro-batch 3, chunk 0: 13 to 14"), std::string::npos);
  EXPECT_NE(svg.find(">happened: bubble 14.3 % of 14 s</text>"), std::string::npos);
}

/// Two stages, of which the second takes three times as long: by hand, gpipe with two micro-batches is
///   stage 0   F0 F1 . . . . . . . . . . . B0 B0 . . . . B1 B1
///   stage 1   .  F0 F0 F0 F1 F1 F1 B0 … (6) B1 … (6)
TEST(StageCosts, OfStagesThatAreNotAlike) {
  const Schedule schedule = make_schedule(parse_schedule("gpipe"), 2, 2);
  const Timeline uneven = simulate_stages(schedule, {{.forward = 1, .backward = 2}, {.forward = 3, .backward = 6}});
  EXPECT_DOUBLE_EQ(uneven.total, 1 + 3 + 3 + 6 + 6 + 2);
  EXPECT_DOUBLE_EQ(uneven.bubble, 1 - (6.0 + 18.0) / (2 * 21));
  const Timeline even = simulate_stages(schedule, {{}, {}});
  EXPECT_EQ(even.spans, simulate(schedule).spans);
  const std::vector<Costs> found = measured_costs_of_stages(uneven);
  ASSERT_EQ(found.size(), 2u);
  EXPECT_DOUBLE_EQ(found[0].forward, 1);
  EXPECT_DOUBLE_EQ(found[1].backward, 6);
  EXPECT_THROW(simulate_stages(schedule, {{}}), InvalidArgument);
  EXPECT_THROW(simulate_stages(schedule, {{.rendezvous = true}, {}}), InvalidArgument);
}

}  // namespace
}  // namespace trireme::stages
