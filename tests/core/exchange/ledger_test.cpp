// label: unit
// Which samples steps were made with: sums that stay exact, and what a checkpoint keeps of them.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include <trireme/base/error.h>
#include <trireme/data/sampler.h>
#include <trireme/exchange/transaction.h>

namespace trireme::exchange::tests {
namespace {

TEST(Ledger, CountsAnEpochInAnyOrder) {
  constexpr size_t kSamples = 3'000'000;  // their signs would not fit into a double
  const auto order = data::epoch_order(kSamples, 7, 3, true);
  Ledger ledger;
  for (size_t at = 0; at < kSamples; at += 1000) {
    double signs = 0;
    for (size_t i = at; i < at + 1000; i++) signs += data::sign_of(order[i]);
    ledger = ledger.in(3);
    ledger.add(1000, signs, at % 7000 != 0);
  }
  EXPECT_EQ(ledger.samples + ledger.left_out, kSamples);
  EXPECT_GT(ledger.left_out, 0);
  EXPECT_EQ(ledger.signs, data::sign_of_all(kSamples));
  ledger.add(0, 1, true);
  EXPECT_NE(ledger.signs, data::sign_of_all(kSamples)) << "a sum that does not see everything";
}

TEST(Ledger, BeginsAnewWithEachEpochButForTheCrew) {
  const Ledger ledger{.epoch = 1, .samples = 5, .signs = 6, .left_out = 1, .lost = 2, .joined = 3};
  EXPECT_EQ(ledger.in(1).samples, 5);
  const Ledger next = ledger.in(2);
  EXPECT_EQ(next.epoch, 2);
  EXPECT_EQ(next.samples + next.signs + next.left_out, 0);
  EXPECT_EQ(next.lost, 2);
  EXPECT_EQ(next.joined, 3);
}

TEST(Ledger, IsReadBackFromItsText) {
  const Ledger ledger{.epoch = 12, .samples = 1e9, .signs = kSigns - 1, .left_out = 64, .lost = 2, .joined = 3};
  const Ledger read = Ledger::parse(ledger.text());
  EXPECT_EQ(read.epoch, ledger.epoch);
  EXPECT_EQ(read.samples, ledger.samples);
  EXPECT_EQ(read.signs, ledger.signs);
  EXPECT_EQ(read.left_out, ledger.left_out);
  EXPECT_EQ(read.lost, ledger.lost);
  EXPECT_EQ(read.joined, ledger.joined);
  EXPECT_TRUE(std::isnan(Ledger::parse(Ledger{.samples = std::numeric_limits<double>::quiet_NaN()}.text()).samples));
  EXPECT_THROW(Ledger::parse("epoch 3 samples"), Corruption);
  EXPECT_THROW(Ledger::parse(""), Corruption);
}

}  // namespace
}  // namespace trireme::exchange::tests
