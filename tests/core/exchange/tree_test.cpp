// label: unit
// Sums over virtual workers: the same bits, whoever computes which pieces.
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <numeric>
#include <random>
#include <vector>

#include <trireme/base/error.h>
#include <trireme/exchange/tree.h>
#include <trireme/space/kernels.h>

namespace trireme::exchange {
namespace {

using Values = std::vector<float>;

/// Of an aligned tree, written down anew: the sum of leaves [begin, end), where each half has a power of two.
float reference(const Values& leaves, size_t begin, size_t end) {
  if (end - begin == 1) return leaves[begin];
  size_t half = 1;
  while (2 * half < end - begin) half *= 2;
  return reference(leaves, begin, begin + half) + reference(leaves, begin + half, end);
}

/// As a worker goes through its run: seats, and the turns' instructions.
std::vector<float> roots_by_turns(const Values& leaves, int pieces, Pieces run) {
  std::vector<float> seats(static_cast<size_t>(seats_of(pieces, run)));
  int standing = 0;
  for (int piece = run.begin; piece < run.end; piece++) {
    const Turn turn = turn_of(pieces, run, piece);
    float& seat = seats.at(static_cast<size_t>(turn.seat));
    if (!turn.adds) standing++;
    EXPECT_EQ(turn.seat, standing - 1);
    seat = turn.adds ? seat + leaves[static_cast<size_t>(piece)] : leaves[static_cast<size_t>(piece)];
    for (int fold = 0; fold < turn.folds; fold++, standing--)
      seats.at(static_cast<size_t>(standing - 2)) += seats.at(static_cast<size_t>(standing - 1));
  }
  seats.resize(static_cast<size_t>(standing));
  return seats;
}

/// The sum over all workers' roots, by the kernel that updates use.
float sum_of(const Values& leaves, int pieces, const std::vector<Pieces>& runs) {
  std::vector<Pieces> roots;
  Values sums;
  for (const Pieces& run : runs) {
    const std::vector<Pieces> own = roots_of(pieces, run);
    const Values values = roots_by_turns(leaves, pieces, run);
    EXPECT_EQ(own.size(), values.size());
    roots.insert(roots.end(), own.begin(), own.end());
    sums.insert(sums.end(), values.begin(), values.end());
  }
  const std::vector<uint8_t> adds = adds_over(pieces, roots);
  std::vector<const void*> sources;
  for (const float& sum : sums) sources.push_back(&sum);
  float result = 0;
  space::kernels().sum_tree(DType::f32, &result, sources.data(), adds.data(), static_cast<int>(sources.size()), 1);
  return result;
}

Values random_leaves(int pieces, std::mt19937& random) {
  std::normal_distribution<float> normal;
  Values leaves(static_cast<size_t>(pieces));
  for (float& leaf : leaves) leaf = normal(random) * std::ldexp(1.0F, static_cast<int>(random() % 20));
  return leaves;
}

/// Calls visit with every way to cut pieces into runs.
void each_division(int pieces, const std::function<void(const std::vector<Pieces>&)>& visit) {
  for (unsigned cuts = 0; cuts < 1U << (pieces - 1); cuts++) {
    std::vector<Pieces> runs{{0, 1}};
    for (int piece = 1; piece < pieces; piece++)
      if ((cuts >> (piece - 1) & 1) != 0)
        runs.push_back({piece, piece + 1});
      else
        runs.back().end++;
    visit(runs);
  }
}

TEST(Tree, EveryDivisionOfUpToTwelvePiecesGivesTheSameBits) {
  std::mt19937 random(1);
  for (int pieces = 1; pieces <= 12; pieces++) {
    const Values leaves = random_leaves(pieces, random);
    const float wanted = reference(leaves, 0, leaves.size());
    each_division(pieces, [&](const std::vector<Pieces>& runs) {
      ASSERT_EQ(sum_of(leaves, pieces, runs), wanted) << pieces << " pieces, " << runs.size() << " workers";
    });
  }
}

TEST(Tree, EvenAndRandomRunsOfManyPiecesGiveTheSameBits) {
  std::mt19937 random(2);
  bool in_order_differs = false;
  for (const int pieces : {13, 16, 31, 64, 100, 256}) {
    const Values leaves = random_leaves(pieces, random);
    const float wanted = reference(leaves, 0, leaves.size());
    in_order_differs = in_order_differs || std::accumulate(leaves.begin(), leaves.end(), 0.0F) != wanted;
    for (int workers = 1; workers <= std::min(pieces, 40); workers++) {
      ASSERT_EQ(sum_of(leaves, pieces, even_runs(pieces, workers)), wanted);
      std::vector<double> shares(static_cast<size_t>(workers));
      for (double& share : shares) share = 0.01 + static_cast<double>(random() % 100);
      ASSERT_EQ(sum_of(leaves, pieces, runs_by_share(pieces, shares)), wanted);
    }
  }
  EXPECT_TRUE(in_order_differs) << "these numbers would not show another order";
}

TEST(Tree, RunsCoverAllPiecesInOrderAndNobodyIsIdle) {
  std::mt19937 random(3);
  const auto expect_runs = [](const std::vector<Pieces>& runs, int pieces) {
    EXPECT_EQ(runs.back().end, pieces);
    for (size_t i = 0; i < runs.size(); i++) {
      EXPECT_GE(runs[i].size(), 1);
      EXPECT_EQ(runs[i].begin, i > 0 ? runs[i - 1].end : 0);
    }
  };
  for (int pieces = 1; pieces <= 16; pieces++)
    for (int workers = 1; workers <= pieces; workers++) {
      const std::vector<Pieces> even = even_runs(pieces, workers);
      expect_runs(even, pieces);
      for (const Pieces& run : even) EXPECT_LE(std::abs(run.size() - even[0].size()), 1);
      std::vector<double> shares(static_cast<size_t>(workers));
      for (double& share : shares) share = static_cast<double>(random() % 5);
      shares[random() % shares.size()] += 1;
      expect_runs(runs_by_share(pieces, shares), pieces);
    }
  EXPECT_EQ(runs_by_share(8, std::vector<double>{3, 1}), (std::vector<Pieces>{{0, 6}, {6, 8}}));
  EXPECT_EQ(runs_by_share(4, std::vector<double>{1, 0, 0}), (std::vector<Pieces>{{0, 2}, {2, 3}, {3, 4}}));
  EXPECT_THROW(runs_by_share(4, std::vector<double>{0, 0}), InvalidArgument);
  EXPECT_THROW(runs_by_share(4, std::vector<double>{1, -1}), InvalidArgument);
}

TEST(Tree, RootsAreTheLargestAlignedNodes) {
  EXPECT_EQ(roots_of(8, {1, 7}), (std::vector<Pieces>{{1, 2}, {2, 4}, {4, 6}, {6, 7}}));
  EXPECT_EQ(roots_of(8, {0, 8}), (std::vector<Pieces>{{0, 8}}));
  EXPECT_EQ(roots_of(5, {4, 5}), (std::vector<Pieces>{{4, 5}}));
  EXPECT_EQ(roots_of(6, {4, 6}), (std::vector<Pieces>{{4, 6}}));
  EXPECT_EQ(roots_of(8, {3, 3}), std::vector<Pieces>{});
  const Pieces apart[] = {{4, 5}, {0, 2}, {2, 4}};  // in any order
  EXPECT_EQ(roots_of(8, apart), (std::vector<Pieces>{{0, 4}, {4, 5}}));
}

TEST(Tree, WithOnePieceForEachWorkerThereIsOneSeatAndNothingToFold) {
  for (int pieces = 1; pieces <= 16; pieces++)
    for (const Pieces& run : even_runs(pieces, pieces)) {
      EXPECT_EQ(seats_of(pieces, run), 1);
      const Turn turn = turn_of(pieces, run, run.begin);
      EXPECT_EQ(turn.seat, 0);
      EXPECT_FALSE(turn.adds);
      EXPECT_EQ(turn.folds, 0);
    }
}

TEST(Tree, NoRunTakesMoreSeatsThanSaid) {
  for (int pieces = 1; pieces <= 20; pieces++) {
    const int most = most_seats(pieces);
    for (int begin = 0; begin < pieces; begin++)
      for (int end = begin + 1; end <= pieces; end++)
        ASSERT_LE(seats_of(pieces, {begin, end}), most) << begin << " to " << end << " of " << pieces;
  }
  EXPECT_EQ(most_seats(1), 1);
  EXPECT_EQ(most_seats(4), 2);
}

/// How many sums stand at a time when a tree is carried out.
size_t standing_in(const std::vector<uint8_t>& adds) {
  size_t standing = 0, most = 0;
  for (const uint8_t add : adds) {
    most = std::max(most, ++standing);
    standing -= std::min<size_t>(standing - 1, add);
  }
  EXPECT_EQ(standing, 1U);
  return most;
}

TEST(Tree, NoMoreSumsStandThanKernelsHaveRoomFor) {
  for (const int pieces : {1, 2, 3, 127, 128, 129, 255, kMostPieces})
    EXPECT_LE(standing_in(adds_over(pieces, even_runs(pieces, pieces))), space::kMostStanding);
}

TEST(Tree, ASubtreeHasItsOwnTree) {
  const Pieces halves[] = {{4, 5}, {5, 6}, {6, 8}};
  EXPECT_EQ(adds_over(8, halves), (std::vector<uint8_t>{1, 1, 1}));
  const Pieces leaves[] = {{0, 1}, {1, 2}, {2, 3}, {3, 4}};
  EXPECT_EQ(adds_over(8, leaves), (std::vector<uint8_t>{1, 1, 0, 2}));
}

TEST(Tree, WhatIsNoTreeIsRefused) {
  const Pieces gap[] = {{0, 2}, {3, 4}}, apart[] = {{1, 3}, {3, 4}}, twice[] = {{0, 2}, {0, 2}};
  EXPECT_THROW(adds_over(4, gap), InvalidArgument);
  EXPECT_THROW(adds_over(4, apart), InvalidArgument);
  EXPECT_THROW(adds_over(4, twice), InvalidArgument);
  EXPECT_THROW(adds_over(4, {}), InvalidArgument);
  EXPECT_THROW(even_runs(3, 4), InvalidArgument);
  EXPECT_THROW(even_runs(0, 1), InvalidArgument);
  EXPECT_THROW(even_runs(kMostPieces + 1, 1), InvalidArgument);
}

TEST(Tree, NumbersAreSummedInTheSameTree) {
  std::mt19937 random(4);
  for (int pieces = 1; pieces <= 20; pieces++) {
    const Values leaves = random_leaves(pieces, random);
    std::vector<double> numbers(leaves.begin(), leaves.end());
    for (double& number : numbers) number = number / 3 * 1e10;
    const std::function<double(size_t, size_t)> wanted = [&](size_t begin, size_t end) {
      if (end - begin == 1) return numbers[begin];
      size_t half = 1;
      while (2 * half < end - begin) half *= 2;
      return wanted(begin, begin + half) + wanted(begin + half, end);
    };
    EXPECT_EQ(sum_over(numbers), wanted(0, numbers.size()));
  }
}

}  // namespace
}  // namespace trireme::exchange
