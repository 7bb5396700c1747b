// label: unit
// Whether a codec pays, judged by what heats measured: invented links and codecs, whose best choice is known.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>

#include <trireme/compress/judge.h>

namespace trireme::compress {
namespace {

const std::vector<std::string> kNames = {"fp16", "int8", "sign", "topk:0.01"};

/// What there is to measure: a step computes, codes, and waits for a wire that is busy beside it.
struct World {
  double computing = 0.02;  // seconds
  double hidden = 0;        // of the wire's time, behind the computation
  double wire = 12.5e6;     // bytes a second
  std::vector<double> bytes = {4e6, 1e6, 8e3, 2e6};
  std::vector<uint8_t> codable = {1, 1, 0, 1};
  std::vector<double> ratio = {2, 3.9, 31, 50};        // by candidate
  std::vector<double> speed = {4e9, 3e9, 4e9, 1.5e9};  // bytes a second, both ways
  double noise = 0.02;

  Heat heat(const Choice& choice, std::mt19937_64& random) const {
    std::normal_distribution<double> normal(1, noise);
    Heat w;
    double coded = 0;
    for (size_t b = 0; b < bytes.size(); b++) {
      const size_t codec = choice[b];
      w.bytes.push_back(codec == 0 ? bytes[b] : bytes[b] / ratio[codec - 1]);
      w.coding.push_back(codec == 0 ? 0 : bytes[b] / speed[codec - 1] * std::max(0.1, normal(random)));
      w.cosines.push_back(codec == 0 ? std::nan("") : 0.5);
      coded += w.coding.back();
      w.link += w.bytes.back() / wire;
    }
    w.step = (computing + coded + std::max(0.0, w.link - hidden)) * std::max(0.1, normal(random));
    w.link *= std::max(0.1, normal(random));
    return w;
  }
  Choice all(size_t codec) const {
    Choice choice;
    for (const uint8_t can : codable) choice.push_back(can != 0 ? static_cast<uint8_t>(codec) : 0);
    return choice;
  }
  std::vector<Round> rounds(const std::vector<Choice>& ways, std::mt19937_64& random, int count = 4) const {
    std::vector<Round> rounds;
    for (int r = 0; r < count; r++) {
      Round& round = rounds.emplace_back();
      for (const Choice& way : ways) round.push_back(heat(way, random));
    }
    return rounds;
  }
  /// A whole look.
  Judgement look(uint64_t seed) const {
    std::mt19937_64 random(seed);
    std::vector<Choice> fixed;
    for (size_t codec = 0; codec <= kNames.size(); codec++) fixed.push_back(all(codec));
    const std::vector<Round> survey = rounds(fixed, random);
    const std::vector<Choice> ways = ways_of(propose(survey, codable), codable);
    const std::vector<Round> trial = ways.size() > 1 ? rounds(ways, random) : std::vector<Round>();
    return judge(kNames, survey, trial, codable);
  }
  /// Without noise.
  double step(const Choice& choice) const {
    World quiet = *this;
    quiet.noise = 0;
    std::mt19937_64 random(1);
    return quiet.heat(choice, random).step;
  }
};

bool none(const Choice& choice) { return std::count(choice.begin(), choice.end(), 0) == std::ssize(choice); }

TEST(Judge, IntervalsAreStudents) {
  const std::vector<double> four = {1, 2, 3, 4};
  EXPECT_DOUBLE_EQ(interval_of(four).mean, 2.5);
  EXPECT_NEAR(interval_of(four).half, 3.182 * std::sqrt(5.0 / 3 / 4), 1e-9);
  EXPECT_TRUE(std::isinf(interval_of(std::vector<double>{1}).half));
  EXPECT_TRUE(std::isinf(interval_of(std::vector<double>{}).half));
  std::mt19937_64 random(7);
  std::normal_distribution<double> normal(3, 2);
  for (const size_t size : {3, 4, 8, 40}) {
    int inside = 0;
    for (int trial = 0; trial < 4000; trial++) {
      std::vector<double> samples(size);
      for (double& sample : samples) sample = normal(random);
      const Interval interval = interval_of(samples);
      inside += std::abs(interval.mean - 3) <= interval.half ? 1 : 0;
    }
    EXPECT_NEAR(inside / 4000.0, 0.95, 0.02) << size;
  }
}

TEST(Judge, ASlowLinkGetsTheCodecThatPaysMost) {
  const World slow;
  for (uint64_t seed = 0; seed < 50; seed++) {
    const Judgement j = slow.look(seed);
    EXPECT_EQ(j.choice, slow.all(4)) << j.reason;
    EXPECT_GT(j.saved.least(), 0.3);
    EXPECT_NE(j.reason.find("topk:0.01 for 3 of 4 buckets: a step takes"), std::string::npos) << j.reason;
    EXPECT_NEAR(j.buckets[0].before / j.buckets[0].after, 50, 1e-6);
    EXPECT_GT(j.buckets[0].saved.least(), 0.2);
    EXPECT_EQ(j.buckets[0].cosine, 0.5);
    EXPECT_NE(j.buckets[0].reason.find("instead of"), std::string::npos) << j.buckets[0].reason;
    EXPECT_NE(j.buckets[2].reason.find("one dimension"), std::string::npos) << j.buckets[2].reason;
  }
}

/// A fast wire: every codec costs more than it saves.
TEST(Judge, NothingIsCompressedWhereNothingPays) {
  World fast;
  fast.wire = 4e9;
  for (uint64_t seed = 0; seed < 200; seed++) {
    const Judgement j = fast.look(seed);
    EXPECT_TRUE(none(j.choice)) << j.reason;
    EXPECT_EQ(j.reason.find("nothing is compressed"), 0U);
    EXPECT_EQ(j.buckets[0].before, j.buckets[0].after);
    EXPECT_EQ(j.buckets[0].saved.mean, 0);
  }
}

/// The wire takes long, and nobody waits for it: buckets would save link time, steps get longer.
TEST(Judge, ALinkBehindTheComputationIsNotWorthACodec) {
  World hidden;
  hidden.computing = 1;
  hidden.hidden = 1;
  hidden.noise = 0.001;
  const Judgement j = hidden.look(3);
  EXPECT_TRUE(none(j.choice)) << j.reason;
  EXPECT_NE(j.buckets[0].reason.find("the step as a whole is no shorter"), std::string::npos) << j.buckets[0].reason;
}

/// Some buckets are so cheap to code, others so dear, that the best is a mixture.
TEST(Judge, BucketsMayGoDifferentWays) {
  World mixed;
  mixed.noise = 0.002;
  std::mt19937_64 random(5);
  std::vector<Choice> fixed;
  for (size_t codec = 0; codec <= kNames.size(); codec++) fixed.push_back(mixed.all(codec));
  const auto dear = [](std::vector<Round> rounds, const std::vector<Choice>& ways) {
    for (Round& round : rounds)
      for (size_t way = 0; way < ways.size(); way++)
        if (ways[way][1] != 0) round[way].coding[1] += 0.2, round[way].step += 0.2;  // of the second bucket
    return rounds;
  };
  const std::vector<Round> survey = dear(mixed.rounds(fixed, random), fixed);
  const Proposal proposal = propose(survey, mixed.codable);
  EXPECT_EQ(proposal.mix, (Choice{4, 0, 0, 4}));
  EXPECT_GT(proposal.uniform, 0U);
  const std::vector<Choice> ways = ways_of(proposal, mixed.codable);
  ASSERT_EQ(ways.size(), 3U);
  const Judgement j = judge(kNames, survey, dear(mixed.rounds(ways, random), ways), mixed.codable);
  EXPECT_EQ(j.choice, proposal.mix) << j.reason;
  EXPECT_NE(j.buckets[1].reason.find("no codec pays for certain"), std::string::npos) << j.buckets[1].reason;
}

/// Codecs that lose more come later in the list, and are only taken for something.
TEST(Judge, ACoarserCodecMustEarnIt) {
  World even;
  even.noise = 0.002;
  even.ratio = {20, 20.2, 20.4, 20.5};
  even.speed = {4e9, 4e9, 4e9, 4e9};
  for (uint64_t seed = 0; seed < 20; seed++) EXPECT_EQ(even.look(seed).choice, even.all(1));
}

/// Any link, any codecs, noise of a few percent: never worse than no codec, and near the best fixed codec.
TEST(Judge, NeverMuchWorseThanTheBestFixedChoice) {
  std::mt19937_64 random(11);
  const auto between = [&](double least, double most) {
    return std::exp(std::uniform_real_distribution<double>(std::log(least), std::log(most))(random));
  };
  for (uint64_t seed = 0; seed < 400; seed++) {
    World w;
    w.computing = between(1e-3, 0.3);
    w.wire = between(1e7, 5e9);
    w.hidden = seed % 2 == 0 ? 0 : between(1e-3, 0.3);
    w.noise = between(1e-4, 0.03);
    for (double& bytes : w.bytes) bytes = between(1e3, 1e7);
    for (double& speed : w.speed) speed = between(1e8, 1e10);
    for (double& ratio : w.ratio) ratio = between(1.5, 100);
    const Judgement j = w.look(seed);
    double best = w.step(w.all(0));
    const double plain = best, chosen = w.step(j.choice);
    for (size_t codec = 1; codec <= kNames.size(); codec++) best = std::min(best, w.step(w.all(codec)));
    EXPECT_LE(chosen, 1.03 * plain) << seed << ": " << j.reason;
    EXPECT_LE(chosen, (1.10 + 3 * w.noise) * best) << seed << ": " << j.reason;
    for (size_t b = 0; b < w.codable.size(); b++) EXPECT_TRUE(w.codable[b] != 0 || j.choice[b] == 0);
  }
}

TEST(Judge, TheUnitOfTimeDoesNotMatter) {
  World w;
  for (uint64_t seed = 0; seed < 50; seed++) {
    World slower = w;
    slower.computing *= 7, slower.wire /= 7;
    for (double& speed : slower.speed) speed /= 7;
    EXPECT_EQ(w.look(seed).choice, slower.look(seed).choice);
  }
}

TEST(Judge, WithoutAnythingToCompressThereIsNothingToSay) {
  World w;
  w.codable = {0, 0, 0, 0};
  const Judgement j = w.look(1);
  EXPECT_TRUE(none(j.choice));
  EXPECT_NE(j.reason.find("every parameter is excluded"), std::string::npos) << j.reason;
}

TEST(Judge, WindowsAndLooksAreAsLongAsStepsAsk) {
  EXPECT_EQ(counted_steps(1e-4), 8);
  EXPECT_EQ(counted_steps(0.03), 4);
  EXPECT_EQ(counted_steps(2), 2);
  EXPECT_EQ(counted_steps(0), 8);
  EXPECT_EQ(steps_until_look(20, 0.1), 10000) << "a fiftieth of the time";
  EXPECT_EQ(steps_until_look(0, 0.1), 500);
  EXPECT_EQ(steps_until_look(-3, 0.1), 500);
  EXPECT_EQ(steps_until_look(1e12, 0.1), 1000000);
  const double inf = std::numeric_limits<double>::infinity();
  EXPECT_EQ(steps_until_look(inf, 0.1), 1000000);
}

TEST(Judge, ALinkThatChangesIsLookedAtAgain) {
  using Seconds = std::vector<double>;
  EXPECT_FALSE(has_changed(1, Seconds{}));
  EXPECT_FALSE(has_changed(1, Seconds{2, 2}));
  EXPECT_TRUE(has_changed(1, Seconds{1, 2, 2, 2}));
  EXPECT_TRUE(has_changed(1, Seconds{0.5, 0.6, 0.5}));
  EXPECT_FALSE(has_changed(1, Seconds{2, 1, 2})) << "a mood";
  EXPECT_FALSE(has_changed(1, Seconds{2, 0.5, 2}));
  EXPECT_FALSE(has_changed(1, Seconds{1.4, 1.4, 1.4}));
}

}  // namespace
}  // namespace trireme::compress
