// label: unit
// plan_moves() against its definition: random owner maps, and every byte followed.
#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <set>

#include <trireme/base/error.h>
#include <trireme/state/owners.h>

namespace {

using namespace trireme;
using namespace trireme::state;
using space::Range;

/// By vector and byte: who has it.
using Bytes = std::map<std::pair<std::string, size_t>, std::set<int>>;

Bytes bytes_of(const OwnerMap& map) {
  Bytes result;
  for (const std::string& vector : map.vectors())
    for (const Holding& holding : map.of(vector))
      for (size_t byte = holding.range.begin; byte < holding.range.end; byte++)
        result[{vector, byte}].insert(holding.owner);
  return result;
}

std::map<int, size_t> sent_by(const std::vector<Move>& moves) {
  std::map<int, size_t> sent;
  for (const Move& move : moves) sent[move.from] += move.range.size();
  return sent;
}

/// Follows every byte: it moves from somebody who had it to somebody who needs it and had it not, once.
void expect_exact(const OwnerMap& from, const OwnerMap& to, const std::vector<Move>& moves) {
  const Bytes before = bytes_of(from);
  Bytes after = before;
  for (const Move& move : moves) {
    ASSERT_NE(move.from, move.to);
    ASSERT_FALSE(move.range.empty());
    for (size_t byte = move.range.begin; byte < move.range.end; byte++) {
      const std::pair key{move.vector, byte};
      ASSERT_TRUE(before.at(key).contains(move.from)) << "byte " << byte << " is not at " << move.from;
      ASSERT_TRUE(after[key].insert(move.to).second) << "byte " << byte << " comes to " << move.to << " twice";
    }
  }
  size_t arrived = 0, wanted = 0;
  for (const auto& [key, owners] : bytes_of(to))
    for (int owner : owners) {
      EXPECT_TRUE(after[key].contains(owner)) << key.first << " byte " << key.second << " did not come to " << owner;
      const auto had = before.find(key);
      wanted += had == before.end() || !had->second.contains(owner);
    }
  for (const Move& move : moves) arrived += move.range.size();
  EXPECT_EQ(arrived, wanted) << "something moved that nobody needed";
}

/// `copies` owners for each of a few ranges that cover [0, bytes).
OwnerMap random_map(std::mt19937& random, size_t bytes, int owners, int copies) {
  OwnerMap map;
  for (const char* vector : {"parameters", "optimizer/momentum"}) {
    std::set<size_t> cuts = {0, bytes};
    for (int i = 0; i < 5; i++) cuts.insert(random() % bytes);
    for (auto cut = cuts.begin(); std::next(cut) != cuts.end(); cut++) {
      std::set<int> holders;
      const int many = 1 + static_cast<int>(random() % static_cast<unsigned>(copies));
      while (static_cast<int>(holders.size()) < many)
        holders.insert(static_cast<int>(random() % static_cast<unsigned>(owners)));
      for (int holder : holders) map.add(vector, {*cut, *std::next(cut)}, holder);
    }
  }
  return map;
}

TEST(Moves, CarryEveryByteExactlyOnce) {
  std::mt19937 random(7);
  for (int round = 0; round < 400; round++) {
    const int owners = 1 + static_cast<int>(random() % 6),
              copies = 1 + static_cast<int>(random() % static_cast<unsigned>(owners));
    const OwnerMap from = random_map(random, 700, owners, copies), to = random_map(random, 700, owners, copies);
    expect_exact(from, to, plan_moves(from, to));
    if (HasFatalFailure()) return;
  }
}

TEST(Moves, NothingMovesToTheSameDivision) {
  std::mt19937 random(8);
  for (int round = 0; round < 50; round++) {
    const OwnerMap map = random_map(random, 500, 4, 3);
    EXPECT_TRUE(plan_moves(map, map).empty());
  }
}

OwnerMap equal_parts(size_t bytes, int owners) {
  OwnerMap map;
  for (int owner = 0; owner < owners; owner++) map.add("parameters", space::part_of({0, bytes}, owner, owners), owner);
  return map;
}

TEST(Moves, FromTwoToThree) {
  const auto moves = plan_moves(equal_parts(6 * 64, 2), equal_parts(6 * 64, 3));
  const std::vector<Move> expected = {{"parameters", {128, 192}, 0, 1}, {"parameters", {256, 384}, 1, 2}};
  EXPECT_EQ(moves, expected);
}

TEST(Moves, ANewcomerGetsACopyFromAllWhoHaveOne) {
  OwnerMap from, to;
  for (int owner = 0; owner < 4; owner++) from.add("parameters", {0, 64000}, owner);
  to.add("parameters", {0, 64000}, 4);
  const auto sent = sent_by(plan_moves(from, to));
  ASSERT_EQ(sent.size(), 4u);
  for (const auto& [owner, bytes] : sent) EXPECT_NEAR(static_cast<double>(bytes), 16000, 128) << owner;
}

TEST(Moves, CopiesFillUpWhatSingleSendersLeave) {
  OwnerMap from, to;
  from.add("own", {0, 6400}, 0);  // only owner 0 has this
  for (int owner : {0, 1}) from.add("shared", {0, 6400}, owner);
  to.add("own", {0, 6400}, 2);
  to.add("shared", {0, 6400}, 2);
  const auto sent = sent_by(plan_moves(from, to));
  EXPECT_EQ(sent.at(0), 6400u);
  EXPECT_EQ(sent.at(1), 6400u);
}

TEST(Moves, TheBusiestSenderSendsNoMoreThanItMust) {
  std::mt19937 random(9);
  for (int round = 0; round < 100; round++) {
    const int owners = 2 + static_cast<int>(random() % 4);
    OwnerMap from, to;
    for (int owner = 0; owner < owners; owner++) from.add("parameters", {0, 64 * 1000}, owner);
    to.add("parameters", {random() % 1000, 64 * 1000 - random() % 1000}, owners);
    size_t total = 0, most = 0;
    for (const auto& [owner, bytes] : sent_by(plan_moves(from, to))) total += bytes, most = std::max(most, bytes);
    EXPECT_LE(most, total / static_cast<size_t>(owners) + 64);
  }
}

/// Whatever the division, some set of senders has to send all that only they have: the busiest of them has at least the
/// mean of that. The largest such mean is what a perfect division reaches.
double least_possible(const OwnerMap& from, const OwnerMap& to, int owners) {
  const Bytes before = bytes_of(from);
  std::map<std::set<int>, size_t> needs;  // bytes by who could send them
  for (const auto& [key, wanting] : bytes_of(to))
    for (int owner : wanting)
      if (!before.at(key).contains(owner)) needs[before.at(key)]++;
  double most = 0;
  for (unsigned set = 1; set < 1u << owners; set++) {
    size_t bytes = 0;
    int senders = 0;
    for (int owner = 0; owner < owners; owner++) senders += static_cast<int>(set >> owner & 1);
    for (const auto& [holders, count] : needs)
      if (std::all_of(holders.begin(), holders.end(), [&](int holder) { return (set >> holder & 1) != 0; }))
        bytes += count;
    most = std::max(most, static_cast<double>(bytes) / senders);
  }
  return most;
}

TEST(Moves, AreBalancedHoweverCopiesAreSpread) {
  std::mt19937 random(10);
  for (int round = 0; round < 12; round++) {
    const int owners = 2 + static_cast<int>(random() % 4);
    const OwnerMap from = random_map(random, 16'000, owners, owners), to = random_map(random, 16'000, owners, owners);
    const auto moves = plan_moves(from, to);
    size_t most = 0;
    for (const auto& [owner, bytes] : sent_by(moves)) most = std::max(most, bytes);
    EXPECT_LE(static_cast<double>(most),
              least_possible(from, to, owners) * 1.01 + static_cast<double>(space::kLine * moves.size()))
        << "round " << round;
  }
}

TEST(Moves, NameWhatNobodyHas) {
  OwnerMap from, to;
  from.add("parameters", {0, 100}, 0);
  to.add("parameters", {50, 120}, 1);
  try {
    plan_moves(from, to);
    FAIL() << "20 bytes came from nowhere";
  } catch (const InvalidArgument& error) {
    EXPECT_STREQ(error.what(), "nobody holds bytes 100 to 120 of 'parameters', which owner 1 needs");
  }
}

TEST(Owners, NeighboursBecomeOneAndOverlapsAreRefused) {
  OwnerMap map;
  map.add("v", {0, 10}, 1);
  map.add("v", {20, 30}, 1);
  map.add("v", {10, 20}, 1);
  map.add("v", {5, 25}, 2);
  map.add("v", {7, 7}, 3);
  ASSERT_EQ(map.of("v").size(), 2u);
  EXPECT_EQ(map.of("v")[0], (Holding{{0, 30}, 1}));
  EXPECT_EQ(map.of("v")[1], (Holding{{5, 25}, 2}));
  EXPECT_THROW(map.add("v", {29, 31}, 1), InvalidArgument);
  EXPECT_TRUE(map.of("w").empty());
}

}  // namespace
