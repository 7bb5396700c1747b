// label: unit
// How many workers a launcher keeps, and when it starts the next one.
#include <gtest/gtest.h>

#include <trireme/base/error.h>
#include <trireme/cluster/launching/staffing.h>

namespace trireme::cluster::tests {
namespace {

Clock::time_point at(double seconds) {
  return Clock::time_point{} + std::chrono::duration_cast<Clock::duration>(Seconds(1000 + seconds));
}

std::string refusal_of(const std::string& text) {
  try {
    workers_named(text);
    return "";
  } catch (const InvalidArgument& error) {
    return error.what();
  }
}

TEST(Workers, ANumberIsThatMany) {
  const Workers four = workers_named("4");
  EXPECT_EQ(four.least, 4);
  EXPECT_EQ(four.most, 4);
  EXPECT_FALSE(four.range);
}

TEST(Workers, ARangeHasTwoEnds) {
  const Workers range = workers_named("2:8");
  EXPECT_EQ(range.least, 2);
  EXPECT_EQ(range.most, 8);
  EXPECT_TRUE(range.range);
  EXPECT_TRUE(workers_named("3:3").range);
}

TEST(Workers, WhatCannotBeIsSaid) {
  EXPECT_NE(refusal_of("8:2").find("did you mean 2:8?"), std::string::npos) << refusal_of("8:2");
  EXPECT_NE(refusal_of("0:4").find("did you mean 1:4?"), std::string::npos) << refusal_of("0:4");
  for (const char* text : {"", ":", "2:", ":2", "a:b", "2:3:4", "-1", "1.5", "2 : 3", "99999999999"})
    EXPECT_NE(refusal_of(text).find(text), std::string::npos) << text;
}

TEST(Workers, TheFirstCrewIsOneACoreWithinTheLimits) {
  EXPECT_EQ(first_crew(2, 8, 4), 4);
  EXPECT_EQ(first_crew(2, 8, 1), 2);
  EXPECT_EQ(first_crew(2, 8, 64), 8);
}

TEST(Elasticity, ChecksItsNumbers) {
  const auto check = [](Elasticity e, int ranks) { check_elasticity(e, ranks); };
  const Elasticity replace{.on_failure = OnFailure::replace, .least = 2, .most = 4};
  EXPECT_NO_THROW(check(replace, 3));
  EXPECT_THROW(check(replace, 1), InvalidArgument);
  EXPECT_THROW(check(replace, 5), InvalidArgument);
  EXPECT_THROW(check({.on_failure = OnFailure::replace, .least = 1, .most = kMostWorkers, .spares = 1}, 1),
               InvalidArgument);
  EXPECT_THROW(check({.on_failure = OnFailure::replace, .least = 1, .most = 2, .rejoin_timeout = Seconds(-1)}, 1),
               InvalidArgument);
  EXPECT_THROW(check({.spares = 1}, 1), InvalidArgument);
  EXPECT_NO_THROW(check({}, 256));
}

TEST(Places, AreTheTargetAndTheSparesWithoutThoseThatAreNotReplaced) {
  const Elasticity e{.on_failure = OnFailure::replace, .least = 1, .most = 8, .spares = 2};
  EXPECT_EQ(places(e, 4, 0), 6);
  EXPECT_EQ(places(e, 4, 3), 3);
  EXPECT_EQ(places(e, 1, 9), 0);
}

TEST(NextStart, FillsThePlacesAtOnce) {
  EXPECT_EQ(next_start(at(0), 2, 5, {}).start, 3);
  EXPECT_EQ(next_start(at(0), 5, 5, {}).start, 0);
  EXPECT_EQ(next_start(at(0), 6, 5, {}).start, 0);
  EXPECT_FALSE(next_start(at(0), 6, 5, {}).look_again);
}

TEST(BackOff, ADeathAfterALongLifeIsReplacedAtOnce) {
  const BackOff back_off = after_death({3, at(0)}, at(20), at(5), false);
  EXPECT_EQ(back_off.early, 0);
  EXPECT_EQ(next_start(at(20), 1, 2, back_off).start, 1);
}

TEST(BackOff, SoIsThatOfOneThatHadGotSomewhere) { EXPECT_EQ(after_death({3, at(0)}, at(2), at(1), true).early, 0); }

TEST(BackOff, EarlyDeathsAreWaitedForTwiceAsLongEachTime) {
  BackOff back_off;
  double now = 0;
  for (const double wait : {0.5, 1.0, 2.0, 4.0}) {
    back_off = after_death(back_off, at(now), at(now - 1), false);
    EXPECT_FALSE(back_off.given_up());
    EXPECT_EQ(next_start(at(now + wait - 0.01), 1, 2, back_off).start, 0);
    EXPECT_EQ(next_start(at(now + wait - 0.01), 1, 2, back_off).look_again, at(now + wait));
    EXPECT_EQ(next_start(at(now + wait), 1, 2, back_off).start, 1);
    now += wait + 1;
  }
}

TEST(BackOff, AfterFiveInARowNoMoreAreStarted) {
  BackOff back_off;
  for (int i = 0; i < kMostEarlyDeaths; i++) back_off = after_death(back_off, at(i), at(i), false);
  EXPECT_TRUE(back_off.given_up());
  EXPECT_EQ(next_start(at(1e6), 1, 2, back_off).start, 0);
  EXPECT_FALSE(next_start(at(1e6), 1, 2, back_off).look_again);
}

}  // namespace
}  // namespace trireme::cluster::tests
