// label: unit
// Every byte of a pass once, whoever does it.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <numeric>
#include <set>
#include <stdexcept>
#include <thread>
#include <vector>

#include <trireme/base/error.h>
#include <trireme/base/helpers.h>

namespace trireme::tests {
namespace {

/// How often each byte of a pass was visited.
std::vector<uint8_t> visits(Helpers& helpers, size_t total) {
  std::vector<uint8_t> counts(total);
  helpers.run(total, [&](size_t begin, size_t end) {
    for (size_t i = begin; i < end; i++) counts[i]++;
  });
  return counts;
}

bool all_ones(const std::vector<uint8_t>& counts) {
  return std::all_of(counts.begin(), counts.end(), [](uint8_t count) { return count == 1; });
}

TEST(Helpers, VisitsEveryByteOnce) {
  for (int count : {0, 1, 3}) {
    Helpers helpers(count);
    EXPECT_EQ(helpers.count(), count);
    for (size_t total : {size_t{0}, size_t{1}, Helpers::kLong - 1, Helpers::kLong, Helpers::kLong + 1,
                         2 * Helpers::kLong + 12345, 7 * Helpers::kPiece, size_t{3'000'001}})
      EXPECT_TRUE(all_ones(visits(helpers, total))) << total << " bytes, " << count << " helpers";
  }
}

/// One pass after the other, so that helpers come late to some, and to others not at all.
TEST(Helpers, KeepsManyPassesApart) {
  Helpers helpers(3);
  std::vector<uint32_t> sums(5 * Helpers::kLong / 4);
  for (uint32_t pass = 1; pass <= 2000; pass++) {
    const size_t total = sums.size() - pass % 777;
    helpers.run(total, [&, pass](size_t begin, size_t end) {
      for (size_t i = begin; i < end; i += 4096) sums[i] += pass;
    });
    ASSERT_EQ(sums[0], pass * (pass + 1) / 2);
  }
  for (size_t i = 0; i < sums.size() - 777; i += Helpers::kPiece) ASSERT_EQ(sums[i], 2000u * 2001 / 2) << i;
}

TEST(Helpers, PiecesBeginOnACacheLine) {
  Helpers helpers(1);
  std::mutex mutex;
  std::set<size_t> begins;
  helpers.run(3'000'001, [&](size_t begin, size_t) {
    const std::lock_guard lock(mutex);
    begins.insert(begin);
  });
  EXPECT_GT(begins.size(), 1u);
  for (size_t begin : begins) EXPECT_EQ(begin % 64, 0u);
}

/// The helper does the last piece while the caller waits for it to begin: only a second thread can end this.
TEST(Helpers, TakePart) {
  Helpers helpers(1);
  const size_t total = 2 * Helpers::kLong;
  const auto caller = std::this_thread::get_id();
  std::atomic<bool> helped{false};
  helpers.run(total, [&](size_t, size_t) {
    if (std::this_thread::get_id() != caller) {
      helped.store(true);
      helped.notify_all();
    }
    helped.wait(false);
  });
  EXPECT_TRUE(helped.load());
}

TEST(Helpers, ShortPassesStayWithTheCaller) {
  Helpers helpers(2);
  const auto caller = std::this_thread::get_id();
  for (int i = 0; i < 100; i++) {
    int calls = 0;
    helpers.run(Helpers::kLong - 1, [&](size_t begin, size_t end) {
      EXPECT_EQ(std::this_thread::get_id(), caller);
      EXPECT_EQ(begin, 0u);
      EXPECT_EQ(end, Helpers::kLong - 1);
      calls++;
    });
    EXPECT_EQ(calls, 1);
  }
}

TEST(Helpers, TellsTheCallerWhatAHelperThrew) {
  Helpers helpers(1);
  const auto caller = std::this_thread::get_id();
  std::atomic<bool> thrown{false};
  const auto body = [&](size_t, size_t) {
    if (std::this_thread::get_id() == caller) return thrown.wait(false);
    thrown.store(true);
    thrown.notify_all();
    fail<InvalidArgument>("a helper's error");
  };
  EXPECT_THROW(helpers.run(4 * Helpers::kLong, body), InvalidArgument);
  EXPECT_TRUE(all_ones(visits(helpers, Helpers::kLong)));  // and goes on
}

TEST(Helpers, DoesTheOtherPiecesWhenOneThrows) {
  for (int count : {1, 2}) {
    Helpers helpers(count);
    const size_t total = 8 * Helpers::kPiece;
    std::vector<uint8_t> done(8);
    EXPECT_THROW(helpers.run(total,
                             [&](size_t begin, size_t) {
                               done[begin / Helpers::kPiece] = 1;
                               if (begin == 0 || begin == 5 * Helpers::kPiece) throw std::runtime_error("no");
                             }),
                 std::runtime_error);
    EXPECT_EQ(std::accumulate(done.begin(), done.end(), 0), 8);
  }
}

TEST(Helpers, EndsWhileIdle) {
  for (int i = 0; i < 200; i++) {
    Helpers helpers(i % 4);
    if (i % 3 == 0) {
      EXPECT_TRUE(all_ones(visits(helpers, Helpers::kLong)));
    }
    if (i % 10 == 0) std::this_thread::sleep_for(std::chrono::milliseconds(1));  // now they sleep
  }
}

}  // namespace
}  // namespace trireme::tests
