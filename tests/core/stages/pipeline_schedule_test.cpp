// label: unit
// Generators against what is known of their schedules: every one is sound, takes the time and holds the activations
// that formulas say.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <random>
#include <tuple>

#include <trireme/base/error.h>
#include <trireme/stages/check.h>
#include <trireme/stages/schedule_file.h>
#include <trireme/stages/timeline.h>

#include "schedule_oracle.h"

namespace trireme::stages {
namespace {

using Name = ScheduleSpec::Name;

std::string row_text(const std::string& spec, int stages, int micro, int stage) {
  std::string text;
  const Schedule schedule = make_schedule(parse_schedule(spec), stages, micro);
  for (const Action& a : schedule.rows[stage]) text += (text.empty() ? "" : " ") + brief(a, schedule.chunks);
  return text;
}

std::string computing(const std::string& spec, int stages, int micro, int stage) {
  std::string text;
  const Schedule schedule = make_schedule(parse_schedule(spec), stages, micro);
  for (const Action& a : schedule.rows[stage])
    if (is_compute(a.kind)) text += (text.empty() ? "" : " ") + brief(a, schedule.chunks);
  return text;
}

template <class F>
std::string message_of(F&& f) {
  try {
    f();
  } catch (const InvalidArgument& error) {
    return error.what();
  }
  return "nothing was thrown";
}

TEST(Spec, IsReadAndWritten) {
  for (const char* text : {"gpipe", "1f1b", "interleaved:1", "interleaved:7", "zero-bubble", "file:a:b/c"})
    EXPECT_EQ(describe(parse_schedule(text)), text);
  EXPECT_EQ(parse_schedule("interleaved:7").chunks, 7);
  EXPECT_EQ(parse_schedule("file:a:b/c").path, "a:b/c");
  EXPECT_EQ(parse_schedule("zero-bubble"), (ScheduleSpec{Name::zero_bubble, 1, ""}));
}

TEST(Spec, SaysWhatIsWrongWithIt) {
  const auto says = [](const std::string& text, const std::string& part) {
    const std::string message = message_of([&] { parse_schedule(text); });
    EXPECT_NE(message.find(part), std::string::npos) << text << ": " << message;
  };
  says("zero_bubble", "did you mean 'zero-bubble'?");
  says("1f1", "did you mean '1f1b'?");
  says("interleave:2", "did you mean 'interleaved'?");
  says("", "gpipe, 1f1b, interleaved:V, zero-bubble or file:PATH");
  for (const char* text : {"interleaved", "interleaved:", "interleaved:0", "interleaved:-1", "interleaved:2x",
                           "interleaved:99999999999", "interleaved: 2", "interleaved:257"})
    says(text, "such as interleaved:2");
  says("gpipe:2", "nothing comes after 'gpipe'");
  says("file:", "a path comes after the colon");
}

TEST(Sizes, AreRefusedWhenTheyCannotBe) {
  const auto says = [](const ScheduleSpec& spec, int stages, int micro, const std::string& part) {
    const std::string message = message_of([&] { make_schedule(spec, stages, micro); });
    EXPECT_NE(message.find(part), std::string::npos) << message;
  };
  says({}, 0, 4, "1 to 4096 stages, not 0");
  says({}, 2, -3, "micro-batches, not -3");
  says({}, 4096, 65536, "is too large");
  says({Name::interleaved, 0, ""}, 2, 4, "chunks in a stage, not 0");
  says({Name::one_f_one_b, 2, ""}, 2, 4, "interleaved:2 has several");
  says({Name::zero_bubble, 3, ""}, 2, 4, "one chunk in each stage, not 3");
}

TEST(Rows, AreTheKnownOnes) {
  EXPECT_EQ(row_text("gpipe", 2, 2, 0), "F0 sa0 F1 sa1 rg0 B0 rg1 B1");
  EXPECT_EQ(row_text("gpipe", 2, 2, 1), "ra0 F0 ra1 F1 B0 sg0 B1 sg1");
  EXPECT_EQ(row_text("gpipe", 3, 2, 1), "ra0 F0 sa0 ra1 F1 sa1 rg0 B0 sg0 rg1 B1 sg1");
  EXPECT_EQ(row_text("1f1b", 2, 3, 0), "F0 sa0 F1 sa1 rg0 B0 F2 sa2 rg1 B1 rg2 B2");
  EXPECT_EQ(row_text("1f1b", 2, 3, 1), "ra0 F0 B0 ra1 sg0 F1 B1 ra2 sg1 F2 B2 sg2");
  EXPECT_EQ(computing("1f1b", 4, 4, 0), "F0 F1 F2 F3 B0 B1 B2 B3");
  EXPECT_EQ(computing("1f1b", 4, 4, 1), "F0 F1 F2 B0 F3 B1 B2 B3");
  EXPECT_EQ(computing("1f1b", 4, 4, 3), "F0 B0 F1 B1 F2 B2 F3 B3");
  EXPECT_EQ(computing("interleaved:2", 2, 2, 0), "F0.0 F1.0 F0.1 F1.1 B0.1 B1.1 B0.0 B1.0");
  EXPECT_EQ(computing("interleaved:2", 2, 2, 1), "F0.0 F1.0 F0.1 B0.1 F1.1 B1.1 B0.0 B1.0");
  EXPECT_EQ(computing("zero-bubble", 3, 3, 0), "F0 F1 F2 I0 W0 I1 W1 I2 W2");
  EXPECT_EQ(computing("zero-bubble", 3, 3, 2), "F0 I0 F1 I1 F2 I2 W0 W1 W2");
  EXPECT_EQ(row_text("1f1b", 1, 2, 0), "F0 B0 F1 B1");
  EXPECT_EQ(row_text("interleaved:2", 1, 1, 0), "F0.0 F0.1 B0.1 B0.0");
}

TEST(Rows, PairsOfSendAndReceive) {
  const Schedule s = make_schedule(parse_schedule("interleaved:3"), 4, 8);
  const auto [on, receive] = partner(s, 3, {Kind::send_activation, 5, 1});
  EXPECT_EQ(on, 0);
  EXPECT_EQ(receive, (Action{Kind::receive_activation, 5, 2}));
  const auto [back, send] = partner(s, 3, {Kind::receive_gradient, 5, 1});
  EXPECT_EQ(back, 0);
  EXPECT_EQ(send, (Action{Kind::send_gradient, 5, 2}));
  for (int stage = 0; stage < s.stages; stage++)
    for (const Action& a : s.rows[stage]) {
      if (is_compute(a.kind)) continue;
      const auto [other, action] = partner(s, stage, a);
      EXPECT_NE(is_send(a.kind), is_send(action.kind));
      const auto [again, same] = partner(s, other, action);
      EXPECT_EQ(again, stage);
      EXPECT_EQ(same, a);
    }
}

// ---- over random numbers of stages, micro-batches and chunks ----

/// In each chunk forwards, backwards and weight parts see micro-batches in their order.
void expect_in_order(const Schedule& s) {
  for (const auto& row : s.rows) {
    std::map<std::pair<Kind, int>, int> next;
    for (const Action& a : row) ASSERT_EQ(a.micro, (next[{a.kind, a.chunk}]++)) << describe(a);
  }
}

int predicted_peak(const ScheduleSpec& spec, int p, int m, int r) {
  const int v = spec.chunks;
  switch (spec.name) {
    case Name::gpipe:
      return m * v;
    case Name::one_f_one_b:
      return std::min(m, p - r);
    case Name::zero_bubble:
      return std::min(m, p);
    default: {
      const int round = m <= p ? m : (m + m / p - 1) / (m / p);  // p where it divides m
      return std::min(m * v, 2 * (p - r - 1) + (v - 1) * round + 1);
    }
  }
}

/// The time in which all is done, by another way than the simulation: the longest path, computed position by position
/// in repeated passes over the rows until nothing changes.
double longest_path(const Schedule& s, const Costs& c) {
  std::map<std::tuple<bool, int, int>, double> end;  // gradient, micro, position
  double total = 0;
  const int last = s.stages * s.chunks - 1;
  for (bool changed = true; changed;) {
    changed = false;
    for (int stage = 0; stage < s.stages; stage++) {
      double now = 0;
      for (const Action& a : s.rows[stage]) {
        if (!is_compute(a.kind)) continue;
        const int q = a.chunk * s.stages + stage;
        if (a.kind == Kind::forward && q > 0) now = std::max(now, end[{false, a.micro, q - 1}]);
        if ((a.kind == Kind::backward || a.kind == Kind::backward_input) && q < last)
          now = std::max(now, end[{true, a.micro, q + 1}]);
        now += (a.kind == Kind::forward          ? c.forward
                : a.kind == Kind::backward       ? c.backward
                : a.kind == Kind::backward_input ? c.input
                                                 : c.weight) /
               s.chunks;
        if (a.kind != Kind::backward_weight) {
          double& known = end[{a.kind != Kind::forward, a.micro, q}];
          changed = changed || known != now;
          known = now;
        }
      }
      total = std::max(total, now);
    }
  }
  return total;
}

void expect_sound(const ScheduleSpec& spec, int p, int m, const Costs& costs, bool thorough) {
  SCOPED_TRACE(fmt::format("{} with {} stages, {} micro-batches, {} chunks", describe(spec), p, m, spec.chunks));
  const Schedule s = make_schedule(spec, p, m);
  const Verdict verdict = check(s);
  ASSERT_TRUE(verdict.ok) << verdict.reason;
  ASSERT_EQ(verdict.peak.size(), static_cast<size_t>(p));
  for (int r = 0; r < p; r++) ASSERT_EQ(verdict.peak[r], predicted_peak(spec, p, m, r)) << "stage " << r;
  const Timeline timeline = simulate(s, costs);
  size_t actions = 0;
  for (const auto& row : s.rows) actions += row.size();
  ASSERT_EQ(timeline.spans.size(), actions);
  const auto formula = bubble_formula(spec, p, m, costs);
  ASSERT_TRUE(formula);
  ASSERT_NEAR(timeline.bubble, *formula, 1e-9);
  const double ideal = m * (costs.forward + costs.backward);
  ASSERT_NEAR(timeline.total * (1 - *formula), ideal, 1e-9 * ideal);
  if (!thorough) return;
  expect_in_order(s);
  ASSERT_TRUE(test::Oracle(s).valid());
  ASSERT_NEAR(timeline.total, longest_path(s, costs), 1e-9 * timeline.total);
  ASSERT_EQ(schedule_from_text(to_text(s), "text"), s);
  Costs meeting = costs;
  meeting.rendezvous = true;
  const double with_rendezvous = simulate(s, meeting).total;
  ASSERT_GE(with_rendezvous, timeline.total * (1 - 1e-9));
  if (spec.chunks == 1 && spec.name != Name::interleaved) {  // one chunk: nobody ever waits for who takes it
    ASSERT_NEAR(with_rendezvous, timeline.total, 1e-9 * timeline.total);
  }
}

TEST(Generators, AreSoundForRandomSizes) {
  std::mt19937 random(20240917);
  const auto upto = [&](int most) { return 1 + static_cast<int>(random() % most); };
  for (int round = 0; round < 10000; round++) {
    const bool large = round % 1000 == 0;
    const int p = upto(large ? 40 : 7), m = upto(large ? 80 : 14), v = upto(large ? 5 : 3);
    const double forward = upto(8), backward = upto(16);
    const Costs any{forward, backward, backward / 2, backward / 2}, even{forward, 2 * forward, forward, forward};
    const bool thorough = round % 20 == 0;
    expect_sound({Name::gpipe, v, ""}, p, m, any, thorough);
    expect_sound({Name::one_f_one_b, 1, ""}, p, m, any, thorough);
    expect_sound({Name::interleaved, v, ""}, p, m, any, thorough);
    expect_sound({Name::zero_bubble, 1, ""}, p, m, even, thorough);
    if (HasFatalFailure()) return;
  }
}

TEST(Generators, ZeroBubbleWaitsAThirdOf1F1B) {
  for (int p : {2, 4, 8})
    for (int m : {4, 8, 16}) {
      const Timeline plain = simulate(make_schedule(parse_schedule("1f1b"), p, m));
      const Timeline split = simulate(make_schedule(parse_schedule("zero-bubble"), p, m));
      const double ideal = 3.0 * m, waits = plain.total - ideal, left = split.total - ideal;
      EXPECT_DOUBLE_EQ(waits, 3.0 * (p - 1));
      if (m >= p) {
        EXPECT_DOUBLE_EQ(left, p - 1);
        EXPECT_LE(left, 0.45 * waits);
      } else {  // stage 0: the first gradient comes after 2p - 1, and then a B and a W of each micro-batch follow
        EXPECT_DOUBLE_EQ(split.total, 2 * p - 1 + 2 * m);
      }
    }
}

TEST(Generators, SmallerBubblesWithChunks) {
  for (int p : {2, 4, 8})
    for (int rounds : {1, 2, 4})
      for (int v : {2, 4}) {
        const int m = p * rounds;
        const double whole = simulate(make_schedule(parse_schedule("1f1b"), p, m)).total;
        const double cut = simulate(make_schedule({Name::interleaved, v, ""}, p, m)).total;
        EXPECT_NEAR((cut - 3.0 * m) * v, whole - 3.0 * m, 1e-9);
      }
}

}  // namespace
}  // namespace trireme::stages
