// label: unit
// Which way buckets go while codecs are tried, heat by heat, of an invented link.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>

#include <trireme/exchange/trials.h>

namespace trireme::exchange {
namespace {

using compress::Choice;
using compress::Heat;

const std::vector<std::string> kNames = {"fp16", "topk:0.01"};
const std::vector<uint8_t> kCodable = {1, 0, 1};

/// Several ranks, each a little slower than the one before.
struct Crew {
  double wire = 1e6;  // bytes a second
  std::vector<Trials> ranks = std::vector<Trials>(3, Trials(kNames, kCodable));
  std::vector<Choice> gone{};  // by step

  double bytes(size_t codec) const { return codec == 0 ? 1e6 : codec == 1 ? 5e5 : 2e4; }
  void step() {
    const Choice& choice = ranks[0].choice();
    gone.push_back(choice);
    double link = 0;
    std::vector<double> coding;
    for (const uint8_t codec : choice) {
      link += bytes(codec) / wire;
      coding.push_back(codec == 0 ? 0 : 1e-3);
    }
    std::vector<Heat> heats;
    for (size_t r = 0; r < ranks.size(); r++) {
      EXPECT_EQ(ranks[r].choice(), choice) << "all ranks go the same way";
      const double jitter = 1 + 1e-4 * static_cast<double>(r + gone.size() % 7);
      if (ranks[r].add((0.01 + link) * jitter, link * jitter, coding)) heats.push_back(ranks[r].mine());
    }
    if (heats.empty()) return;
    ASSERT_EQ(heats.size(), ranks.size()) << "heats end together";
    Heat all = heats.back();
    all.link = heats.front().link;
    for (const uint8_t codec : choice) {
      all.bytes.push_back(bytes(codec));
      all.cosines.push_back(1);
    }
    for (Trials& rank : ranks) rank.conclude(all);
  }
  void until_settled(int64_t look) {
    for (int i = 0; i < 100000 && (!ranks[0].settled() || ranks[0].looks() < look); i++) step();
    ASSERT_EQ(ranks[0].looks(), look);
  }
};

TEST(Trials, TryAllCodecsThenKeepTheBest) {
  Crew crew;
  for (int i = 0; i < Trials::kWarming; i++) crew.step();
  for (const Choice& choice : crew.gone) EXPECT_EQ(choice, (Choice{0, 0, 0})) << "at first as it is";
  crew.until_settled(1);
  std::map<Choice, int> heats;
  for (size_t i = 1; i < crew.gone.size(); i++)
    if (crew.gone[i] != crew.gone[i - 1]) heats[crew.gone[i]]++;
  EXPECT_GE((heats[{1, 0, 1}]), 2);
  EXPECT_GE((heats[{2, 0, 2}]), 4) << "in the survey and the trial";
  EXPECT_EQ(heats.size(), 3U);
  EXPECT_EQ(crew.ranks[0].choice(), (Choice{2, 0, 2})) << crew.ranks[0].judgement().reason;
  const size_t looked = crew.gone.size();
  for (int i = 0; i < 400; i++) crew.step();
  EXPECT_EQ(std::count(crew.gone.begin() + static_cast<ptrdiff_t>(looked), crew.gone.end(), (Choice{2, 0, 2})), 400);
}

/// The first half of each round's ways comes last in the next: a machine that gets slower with time favours nobody.
TEST(Trials, RoundsGoForwardsAndBackwards) {
  Crew crew;
  crew.until_settled(1);
  std::vector<Choice> order;
  for (size_t i = 1; i < crew.gone.size(); i++)
    if (crew.gone[i] != crew.gone[i - 1]) order.push_back(crew.gone[i]);
  const Choice half = {1, 0, 1}, few = {2, 0, 2}, none = {0, 0, 0};
  const std::vector<Choice> wanted = {half, few, half, none, half, few, half, none};
  ASSERT_GE(order.size(), wanted.size());
  EXPECT_EQ((std::vector<Choice>(order.begin(), order.begin() + static_cast<ptrdiff_t>(wanted.size()))), wanted);
}

TEST(Trials, LookAgainWhenTheLinkChanges) {
  Crew crew;
  crew.wire = 1e12;
  crew.until_settled(1);
  EXPECT_EQ(crew.ranks[0].choice(), (Choice{0, 0, 0})) << crew.ranks[0].judgement().reason;
  crew.wire = 1e6;
  const size_t before = crew.gone.size();
  crew.until_settled(2);
  EXPECT_EQ(crew.ranks[0].choice(), (Choice{2, 0, 2}));
  EXPECT_LE(crew.gone.size() - before, 1000U);
}

/// What a look took is not spent again at once, whatever the link does: at most a fiftieth of the time is.
TEST(Trials, DoNotLookAllTheTime) {
  Crew crew;
  crew.until_settled(1);
  crew.wire = 1e5;
  for (int i = 0; i < 2500; i++) crew.step();
  EXPECT_TRUE(crew.ranks[0].settled());
  crew.until_settled(2);
}

TEST(Trials, LookAgainAfterAWhile) {
  Crew crew;
  crew.until_settled(1);
  const size_t before = crew.gone.size();
  while (crew.ranks[0].settled() && crew.gone.size() < 100000) crew.step();
  EXPECT_GE(crew.gone.size() - before, 500U);
  EXPECT_LT(crew.gone.size(), 100000U);
}

TEST(Trials, AnEvaluationBetweenStepsIsNoStep) {
  Trials one(kNames, kCodable);
  for (int i = 0; i < Trials::kWarming; i++) {
    const bool over = one.add(i == 6 ? 100 : 0.01, 0.005, {0, 0, 0});
    EXPECT_EQ(over, i + 1 == Trials::kWarming);
  }
  EXPECT_EQ(one.mine().step, 0.01);
  EXPECT_DOUBLE_EQ(one.mine().link, 0.005);
}

TEST(Trials, WhereNothingIsCodedNothingIsTried) {
  Trials idle(kNames, {0, 0});
  for (int i = 0; i < 1000; i++) {
    ASSERT_FALSE(idle.add(1, 1, {0, 0}));
    ASSERT_EQ(idle.choice(), (Choice{0, 0}));
  }
  EXPECT_TRUE(idle.settled());
  EXPECT_NE(idle.judgement().reason.find("every parameter is excluded"), std::string::npos);
}

}  // namespace
}  // namespace trireme::exchange
