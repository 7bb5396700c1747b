// label: unit
#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>

#include <trireme/base/error.h>
#include <trireme/data/random.h>
#include <trireme/data/sampler.h>

namespace trireme::tests {
namespace {

using data::Cut;
using data::epoch_order;
using Order = std::vector<uint32_t>;

TEST(Random, IsSplitMix64) {  // the first values of the published reference program
  data::Random random(1234567);
  EXPECT_EQ(random.next(), 6457827717110365317u);
  EXPECT_EQ(random.next(), 3203168211198807973u);
  EXPECT_EQ(random.next(), 9817491932198370423u);
}

TEST(Random, StaysInItsBounds) {
  data::Random random(3);
  std::vector<int> seen(7);
  for (int i = 0; i < 7000; i++) seen.at(random.below(7))++;
  for (int count : seen) EXPECT_NEAR(count, 1000, 150);
  for (int i = 0; i < 1000; i++) {
    const double value = random.uniform();
    EXPECT_TRUE(value >= 0 && value < 1) << value;
  }
}

TEST(EpochOrder, IsAPermutation) {
  for (size_t count : {0u, 1u, 2u, 3u, 10u, 1000u, 60000u}) {
    Order order = epoch_order(count, 7, 3, true);
    std::sort(order.begin(), order.end());
    Order all(count);
    std::iota(all.begin(), all.end(), 0u);
    EXPECT_EQ(order, all);
  }
}

TEST(EpochOrder, DependsOnSeedAndEpochAlone) {
  EXPECT_EQ(epoch_order(100, 1, 0, true), epoch_order(100, 1, 0, true));
  EXPECT_NE(epoch_order(100, 1, 0, true), epoch_order(100, 2, 0, true));
  EXPECT_NE(epoch_order(100, 1, 0, true), epoch_order(100, 1, 1, true));
  EXPECT_NE(epoch_order(100, 1, 2, true), epoch_order(100, 2, 1, true));
}

TEST(EpochOrder, StaysTheSameOnEveryMachine) {
  EXPECT_EQ(epoch_order(10, 1, 0, true), (Order{1, 9, 0, 7, 4, 2, 5, 3, 8, 6}));
  EXPECT_EQ(epoch_order(10, 1, 1, true), (Order{9, 4, 0, 1, 6, 2, 8, 7, 5, 3}));
  EXPECT_EQ(epoch_order(10, 2, 0, true), (Order{9, 8, 3, 7, 1, 6, 2, 4, 5, 0}));
}

TEST(EpochOrder, EverySampleComesFirstAboutEquallyOften) {
  std::vector<int> first(5);
  for (int epoch = 0; epoch < 5000; epoch++) first[epoch_order(5, 1, epoch, true)[0]]++;
  for (int count : first) EXPECT_NEAR(count, 1000, 150);
}

TEST(EpochOrder, WithoutShufflingIsTheIdentity) { EXPECT_EQ(epoch_order(5, 9, 4, false), (Order{0, 1, 2, 3, 4})); }

/// Every sample of a step exactly once, pieces of about equal size, weights that add up to 1.
void expect_whole(const Cut& cut) {
  SCOPED_TRACE(testing::Message() << cut.count << " samples, batch " << cut.batch << ", " << cut.ranks
                                  << " ranks, accumulate " << cut.accumulate);
  size_t next = 0;
  for (size_t step = 0; step < cut.steps(); step++) {
    double weights = 0;
    size_t smallest = cut.count, largest = 0;
    ASSERT_EQ(next, step * cut.batch);
    const size_t samples = std::min(cut.count - next, cut.batch);
    for (int rank = 0; rank < cut.ranks; rank++) {
      const size_t before = next;
      for (int micro = 0; micro < cut.accumulate; micro++) {
        const data::Piece piece = data::piece_of(cut, step, rank, micro);
        ASSERT_EQ(piece.begin, next);
        ASSERT_GE(piece.end, piece.begin);
        ASSERT_DOUBLE_EQ(piece.weight, static_cast<double>(piece.size()) / static_cast<double>(samples));
        next = piece.end;
        weights += piece.weight;
      }
      smallest = std::min(smallest, next - before);
      largest = std::max(largest, next - before);
    }
    ASSERT_LE(largest - smallest, 1u);
    ASSERT_NEAR(weights, 1, 1e-12);
  }
  ASSERT_EQ(next, cut.count);
}

TEST(Cut, EverySampleExactlyOnce) {
  for (size_t count : {1u, 7u, 64u, 100u, 1001u})
    for (size_t batch : {1u, 3u, 8u, 64u, 2000u})
      for (int ranks : {1, 2, 3, 4, 8})
        for (int accumulate : {1, 2, 3, 5}) expect_whole({count, batch, ranks, accumulate});
}

TEST(Cut, DoesNotMoveSamplesBetweenSteps) {  // what makes N workers equal to one
  const Cut one{103, 10, 1, 1}, many{103, 10, 3, 2};
  ASSERT_EQ(one.steps(), many.steps());
  for (size_t step = 0; step < one.steps(); step++) {
    EXPECT_EQ(data::piece_of(one, step, 0, 0).begin, data::piece_of(many, step, 0, 0).begin);
    EXPECT_EQ(data::piece_of(one, step, 0, 0).end, data::piece_of(many, step, 2, 1).end);
  }
}

/// A full step is divided as the shares say, a smaller one in proportion; no sample moves to another step.
TEST(Cut, DividesStepsByShares) {
  for (const std::vector<size_t>& shares : {std::vector<size_t>{5, 2, 3}, {1, 8, 1}, {8, 1, 1}, {3, 3, 4}})
    for (int accumulate : {1, 2}) {
      Cut cut{103, 10, 3, accumulate};
      cut.shares = std::make_shared<const std::vector<size_t>>(shares);
      size_t next = 0;
      for (size_t step = 0; step < cut.steps(); step++) {
        double weights = 0;
        for (int rank = 0; rank < 3; rank++) {
          size_t own = 0;
          for (int micro = 0; micro < accumulate; micro++) {
            const data::Piece piece = data::piece_of(cut, step, rank, micro);
            ASSERT_EQ(piece.begin, next);
            next = piece.end;
            own += piece.size();
            weights += piece.weight;
          }
          if (step + 1 < cut.steps()) {
            ASSERT_EQ(own, shares[static_cast<size_t>(rank)]);
          }
        }
        ASSERT_EQ(next, std::min(cut.count, (step + 1) * cut.batch));
        ASSERT_NEAR(weights, 1, 1e-12);
      }
    }
}

std::string refusal(const Cut& cut) {
  try {
    data::check(cut, "my.csv");
  } catch (const InvalidArgument& error) {
    return error.what();
  }
  return "";
}

TEST(Check, SaysWhatToChange) {
  const auto expect = [](const Cut& cut, const std::vector<std::string>& parts) {
    for (const std::string& part : parts) EXPECT_NE(refusal(cut).find(part), std::string::npos) << refusal(cut);
  };
  expect({3, 64, 4, 1}, {"4 workers", "my.csv", "only 3 samples", "at most 3 workers"});
  expect({100, 3, 4, 1}, {"batch of 3", "workers (4)", "at least 4"});
  expect({100, 0, 4, 1}, {"batch must be at least 1"});
  expect({100, 8, 4, 0}, {"accumulate must be at least 1, not 0"});
  expect({100, 8, 4, 3}, {"batch of 8", "4 workers", "3 micro-batches"});
}

TEST(Check, AcceptsWhatWorks) {
  EXPECT_EQ(refusal({4, 4, 4, 1}), "");
  EXPECT_EQ(refusal({100, 8, 4, 2}), "");
  EXPECT_EQ(refusal({10, 64, 2, 1}), "");
}

}  // namespace
}  // namespace trireme::tests
