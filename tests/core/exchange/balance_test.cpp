// label: unit
// SampleShares by speed: pure functions against seeded random histories, and what ranks make of them together.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <random>

#include <trireme/exchange/balancer.h>

namespace trireme::exchange {
namespace {

double longest(const std::vector<double>& seconds, const SampleShares& shares) {
  double most = 0;
  for (size_t r = 0; r < shares.size(); r++) most = std::max(most, seconds[r] * static_cast<double>(shares[r]));
  return most;
}

size_t sum(const SampleShares& shares) { return std::accumulate(shares.begin(), shares.end(), size_t{0}); }

/// The shortest step of all divisions, by trying them.
double best_by_trying(const std::vector<double>& seconds, size_t left, size_t least, size_t rank = 0) {
  if (rank + 1 == seconds.size()) return left < least ? INFINITY : seconds[rank] * static_cast<double>(left);
  double best = INFINITY;
  for (size_t own = least; own + least <= left; own++)
    best = std::min(
        best, std::max(seconds[rank] * static_cast<double>(own), best_by_trying(seconds, left - own, least, rank + 1)));
  return best;
}

TEST(QuickestShares, NoOtherDivisionIsQuicker) {
  std::mt19937_64 random(1);
  std::lognormal_distribution<double> speed(0, 1);
  for (int turn = 0; turn < 400; turn++) {
    std::vector<double> seconds(2 + turn % 3);
    for (double& one : seconds) one = speed(random);
    const size_t least = 1 + turn % 2, batch = seconds.size() * least + random() % 20;
    const SampleShares shares = quickest_shares(seconds, batch, least);
    ASSERT_EQ(sum(shares), batch);
    ASSERT_GE(*std::min_element(shares.begin(), shares.end()), least);
    ASSERT_NEAR(longest(seconds, shares), best_by_trying(seconds, batch, least), 1e-12) << turn;
  }
}

TEST(QuickestShares, EvenSpeedsGiveEvenShares) {
  for (int ranks = 1; ranks < 9; ranks++)
    for (size_t batch = static_cast<size_t>(ranks); batch < 70; batch++) {
      SampleShares shares = quickest_shares(std::vector<double>(static_cast<size_t>(ranks), 0.3), batch);
      SampleShares even = even_shares(batch, ranks);
      std::sort(shares.begin(), shares.end());
      std::sort(even.begin(), even.end());
      ASSERT_EQ(shares, even);
    }
}

Stint stint_of(const std::vector<double>& seconds, const SampleShares& shares) {
  Stint stint{.steps = 20, .ranks = {}};
  const double step = longest(seconds, shares) + 1e-4;
  for (size_t r = 0; r < shares.size(); r++) {
    const double computing = seconds[r] * static_cast<double>(shares[r]);
    stint.ranks.push_back({computing, step - computing});
  }
  return stint;
}

/// A machine room: speeds that stay, change now and then, or are noisy.
struct Room {
  Room(uint64_t seed, int ranks) : random(seed), seconds(static_cast<size_t>(ranks), 1e-3) {}

  std::vector<double> noisy(double noise) {
    std::vector<double> now = seconds;
    std::normal_distribution<double> normal(0, noise);
    for (double& one : now) one *= std::exp(normal(random));
    return now;
  }
  void change_one() { seconds[random() % seconds.size()] = 1e-3 * std::exp2(static_cast<double>(random() % 5) - 2); }
  std::mt19937_64 random;
  std::vector<double> seconds;
};

/// Of one history: what divide() makes of one stint after another.
struct History {
  History(size_t batch, int ranks, size_t at_least) : shares(even_shares(batch, ranks)), least(at_least) {}
  void go_on(const std::vector<double>& seconds) {
    stints.push_back(stint_of(seconds, shares));
    const Division next = divide(std::span(stints).last(std::min(kRemembered, stints.size())), shares, least);
    EXPECT_FALSE(next.reason.empty());
    EXPECT_EQ(next.changed, next.shares != shares);
    if (!next.changed) return;
    shares = next.shares;
    stints.clear();
    changes++;
  }
  SampleShares shares;
  size_t least;
  std::vector<Stint> stints;
  int changes = 0;
};

/// 10,000 crews whose speeds change at random, and noise on top.
TEST(Divide, KeepsWhatShallHoldInEveryHistory) {
  for (uint64_t seed = 0; seed < 10000; seed++) {
    Room room(seed, 2 + static_cast<int>(seed % 7));
    const auto ranks = static_cast<int>(room.seconds.size());
    const size_t least = 1 + seed % 3, batch = room.seconds.size() * least + room.random() % 300;
    History history(batch, ranks, least);
    for (int stint = 0; stint < 40; stint++) {
      if (room.random() % 10 == 0) room.change_one();
      history.go_on(room.noisy(0.05));
      ASSERT_EQ(sum(history.shares), batch) << seed;
      ASSERT_GE(*std::min_element(history.shares.begin(), history.shares.end()), least) << seed;
    }
  }
}

/// Even workers stay even, whatever the noise, and a division that was found stays.
TEST(Divide, DoesNotFlap) {
  const auto changes_at = [](double noise) {
    int changes = 0;
    for (uint64_t seed = 0; seed < 300; seed++) {
      Room room(seed, 2 + static_cast<int>(seed % 7));
      History history(64, static_cast<int>(room.seconds.size()), 1);
      for (int stint = 0; stint < 200; stint++) history.go_on(room.noisy(noise));
      changes += history.changes;
    }
    return changes;
  };
  EXPECT_EQ(changes_at(0.03), 0) << "of even workers, in 60,000 stints";
  EXPECT_LE(changes_at(0.05), 15) << "of even workers whose speeds differ by 5 % each time, in 60,000 stints";
  int later = 0;
  for (uint64_t seed = 0; seed < 300; seed++) {
    Room room(seed, 2 + static_cast<int>(seed % 7));
    room.seconds[0] *= 2;
    History history(256, static_cast<int>(room.seconds.size()), 1);
    for (int stint = 0; stint < 200; stint++) history.go_on(room.noisy(0.04));
    EXPECT_GE(history.changes, 1) << seed;
    later += history.changes - 1;
  }
  EXPECT_LE(later, 30) << "of 300 crews, in 60,000 stints";
}

/// Whatever the speeds were, a few stints after they change the step is nearly as short as it can be.
TEST(Divide, FindsTheSpeedsAndFollowsThem) {
  for (uint64_t seed = 0; seed < 300; seed++) {
    Room room(seed, 2 + static_cast<int>(seed % 7));
    History history(512, static_cast<int>(room.seconds.size()), 1);
    for (int change = 0; change < 5; change++) {
      room.change_one();
      for (int stint = 0; stint < 10; stint++) history.go_on(room.noisy(0.01));
      const SampleShares best = quickest_shares(room.seconds, 512);
      EXPECT_LE(longest(room.seconds, history.shares), 1.08 * longest(room.seconds, best)) << seed;
    }
  }
}

TEST(Divide, EvenIsPreferredWhereItIsNearlyAsGood) {
  History history(64, 2, 1);
  for (int stint = 0; stint < 5; stint++) history.go_on({2e-3, 1e-3});
  EXPECT_EQ(history.shares, (SampleShares{21, 43}));
  for (int stint = 0; stint < 5; stint++) history.go_on({1.02e-3, 1e-3});
  EXPECT_EQ(history.shares, (SampleShares{32, 32}));
}

TEST(Divide, SaysWhy) {
  const SampleShares even{32, 32};
  std::vector<Stint> stints;
  EXPECT_EQ(divide(stints, even).reason, "as before: too little is measured yet");
  stints.assign(2, stint_of({2e-3, 1e-3}, even));
  EXPECT_EQ(divide(stints, even).reason, "as before: too little is measured yet");
  stints.assign(3, stint_of({2e-3, 1e-3}, even));
  EXPECT_EQ(divide(stints, even).reason,
            "by the speed of the last 60 steps a step takes 33 % less time with 21, 43 samples than with 32, 32");
  stints.assign(3, stint_of({1.06e-3, 1e-3}, even));
  EXPECT_EQ(divide(stints, even).reason, "as before: the best by the last 60 steps");
  stints.assign(3, stint_of({1.1e-3, 1e-3}, even));
  EXPECT_EQ(divide(stints, even).reason,
            "as before: by the last 60 steps others would save 3.4 % of a step, which may be chance");
  stints.assign(3, stint_of({0, 1e-3}, even));
  EXPECT_EQ(divide(stints, even).reason, "as before: somebody has measured nothing");
}

TEST(Divide, ACrewThatChangesKeepsTheSpeedsOfThoseWhoStay) {
  EXPECT_EQ(divide_anew(std::vector<double>{0, 0, 0}, 64).shares, even_shares(64, 3));
  EXPECT_EQ(divide_anew(std::vector<double>{1e-3, 1e-3, 0}, 64).shares, even_shares(64, 3));
  EXPECT_EQ(divide_anew(std::vector<double>{1e-3, 2e-3, 0, 1e-3}, 70).shares, (SampleShares{20, 10, 20, 20}));
  EXPECT_TRUE(divide_anew(std::vector<double>{1e-3, 2e-3}, 64).changed);
  EXPECT_FALSE(divide_anew(std::vector<double>{1e-3, 1.05e-3}, 64).changed);
}

TEST(Straggler, IsNamedWithTheEvidence) {
  const SampleShares shares{16, 16, 16, 16};
  const auto found = straggler_of(std::vector<Stint>(3, stint_of({1e-3, 1e-3, 2e-3, 1e-3}, shares)));
  ASSERT_TRUE(found);
  EXPECT_EQ(found->rank, 2);
  EXPECT_EQ(found->steps, 60);
  EXPECT_NEAR(found->waited, 0.016, 1e-9);
  EXPECT_NEAR(found->step, 0.0321, 1e-9);
}

/// Nobody is named who is not what the others wait for.
TEST(Straggler, VictimsAreNotNamed) {
  const SampleShares shares{16, 16, 16, 16};
  const auto named = [&](const std::vector<Stint>& stints) { return straggler_of(stints).has_value(); };
  const Stint slow = stint_of({1e-3, 1e-3, 2e-3, 1e-3}, shares);
  EXPECT_FALSE(named({slow})) << "one stint may be chance";
  EXPECT_FALSE(named({slow, stint_of({2e-3, 1e-3, 1e-3, 1e-3}, shares)})) << "another one each time";
  EXPECT_FALSE(named({2, stint_of({1e-3, 2e-3, 2.1e-3, 1e-3}, shares)})) << "two of them";
  EXPECT_FALSE(named({2, stint_of({1e-3, 1e-3, 1.05e-3, 1e-3}, shares)})) << "too little";
  Stint elsewhere = slow;  // they wait far longer than its computing takes
  for (size_t rank : {0u, 1u, 3u}) elsewhere.ranks[rank].exchanging += 0.01;
  EXPECT_FALSE(named({2, elsewhere}));
  EXPECT_TRUE(named({2, slow}));
}

/// Ranks that hear of one another what is summed up in each step.
struct Crew {
  Crew(int ranks, const Balancer::Settings& settings) {
    for (int rank = 0; rank < ranks; rank++) balancers.emplace_back(settings, rank, ranks);
  }
  void step(const std::vector<double>& seconds) {
    std::array<double, Balancer::kTold> sums{};
    for (Balancer& one : balancers) {
      std::array<double, Balancer::kTold> told{};
      one.tell(told);
      for (size_t i = 0; i < told.size(); i++) sums[i] += told[i];
    }
    const Stint now = stint_of(seconds, shares());
    for (size_t rank = 0; rank < balancers.size(); rank++) {
      balancers[rank].hear(sums);
      balancers[rank].add(now.ranks[rank]);
    }
    for (const Balancer& one : balancers) {
      ASSERT_EQ(one.balance().shares, balancers[0].balance().shares) << "all change the shares together";
      ASSERT_EQ(one.balance().reason, balancers[0].balance().reason);
      ASSERT_EQ(one.balance().changes, balancers[0].balance().changes);
      ASSERT_EQ(one.balance().stragglers, balancers[0].balance().stragglers);
    }
  }
  SampleShares shares() const {
    const auto& now = balancers[0].shares();
    return now ? *now : even_shares(balancers[0].batch(), static_cast<int>(balancers.size()));
  }
  std::vector<Balancer> balancers;
};

TEST(Balancer, AllRanksDivideAlike) {
  std::mt19937_64 random(5);
  std::normal_distribution<double> noise(0, 0.05);
  for (int ranks : {2, 3, 5}) {
    Crew crew(ranks, {.stint = Seconds(0.5)});
    for (Balancer& one : crew.balancers) one.set_batch(60);
    for (int step = 0; step < 400; step++) {
      std::vector<double> seconds(static_cast<size_t>(ranks), 1e-3);
      seconds.back() = 2e-3;
      for (double& one : seconds) one *= std::exp(noise(random));
      crew.step(seconds);
    }
    const Balance& balance = crew.balancers[0].balance();
    EXPECT_EQ(balance.changes, 1);
    EXPECT_NEAR(static_cast<double>(crew.shares().back()), 30.0 / (ranks - 0.5), 2);
    ASSERT_TRUE(balance.straggler);
    EXPECT_EQ(balance.straggler->rank, ranks - 1);
    EXPECT_EQ(balance.stragglers, 1);
    EXPECT_EQ(balance.last.ranks.size(), static_cast<size_t>(ranks));
  }
}

/// Nobody can have less than there is.
TEST(Balancer, StaysEvenWhereABatchIsTooSmall) {
  Crew crew(3, {.least = 2, .stint = Seconds(0.01)});
  for (Balancer& one : crew.balancers) one.set_batch(5);
  for (int step = 0; step < 100; step++) crew.step({1e-3, 9e-3, 1e-3});
  EXPECT_EQ(crew.shares(), even_shares(5, 3));
  EXPECT_EQ(crew.balancers[0].balance().stragglers, 1);
}

TEST(Balancer, FindsStragglersWithoutDividing) {
  Crew crew(3, {.divides = false, .stint = Seconds(0.1)});
  for (Balancer& one : crew.balancers) one.set_batch(60);
  for (int step = 0; step < 100; step++) crew.step({1e-3, 3e-3, 1e-3});
  EXPECT_EQ(crew.balancers[0].shares(), nullptr);
  ASSERT_TRUE(crew.balancers[2].balance().straggler);
  EXPECT_EQ(crew.balancers[2].balance().straggler->rank, 1);
  EXPECT_EQ(crew.balancers[2].balance().stragglers, 1) << "once";
}

TEST(Balancer, AnotherCrewBeginsWithWhatIsKnown) {
  Crew crew(3, {.stint = Seconds(0.1)});
  for (Balancer& one : crew.balancers) one.set_batch(60);
  for (int step = 0; step < 100; step++) crew.step({1e-3, 3e-3, 1e-3});
  std::vector<double> known;
  for (int rank : {1, 2}) known.push_back(crew.balancers[static_cast<size_t>(rank)].seconds_per_sample());
  known.push_back(0);  // one comes anew
  EXPECT_NEAR(known[0], 3e-3, 1e-9);
  crew.balancers.erase(crew.balancers.begin());
  crew.balancers.emplace_back(Balancer::Settings{.stint = Seconds(0.1)}, 2, 3);
  for (int rank = 0; rank < 3; rank++) crew.balancers[static_cast<size_t>(rank)].follow(rank, known, 60);
  EXPECT_EQ(*crew.balancers[0].shares(), (SampleShares{8, 26, 26}));
  const auto before = crew.balancers[0].shares();
  crew.balancers[0].set_batch(60);
  EXPECT_EQ(crew.balancers[0].shares(), before) << "a feed that begins says what is known";
}

}  // namespace
}  // namespace trireme::exchange
