// label: unit
#include <gtest/gtest.h>

#include <limits>

#include <trireme/exchange/order.h>

namespace trireme::exchange::tests {
namespace {

using Order = std::vector<uint32_t>;

TEST(Order, AFastWireSendsWhatIsReady) {
  const Freight buckets[] = {{0.1, 100}, {0.2, 250}, {0.3, 50}};
  EXPECT_EQ(plan_order(buckets, 100, std::numeric_limits<double>::infinity()), (Order{0, 1, 1, 1, 2}));
  EXPECT_EQ(plan_order(buckets, 100, 1e6), (Order{0, 1, 1, 1, 2}));
}

TEST(Order, OnASlowWireFirstLayersOvertake) {
  // A piece takes a second. Bucket 0 is under way when 1 and 2 become ready: the rest of it waits for both.
  const Freight buckets[] = {{0, 400}, {0.5, 200}, {1.5, 200}};
  EXPECT_EQ(plan_order(buckets, 100, 100), (Order{0, 1, 2, 2, 1, 0, 0, 0}));
}

TEST(Order, AFreeWireWaitsForNobodyButTheNext) {
  const Freight buckets[] = {{0, 100}, {10, 100}, {10, 100}, {30, 100}};
  EXPECT_EQ(plan_order(buckets, 100, 100), (Order{0, 2, 1, 3}));
}

/// The last piece of a bucket is short, and takes less time.
TEST(Order, PiecesAreRoundedUp) {
  const Freight buckets[] = {{0, 101}, {0, 0}};
  EXPECT_EQ(plan_order(buckets, 100, 100), (Order{1, 0, 0}));
}

}  // namespace
}  // namespace trireme::exchange::tests
