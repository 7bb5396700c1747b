// label: unit
// Waits that end in time, also where others want the core.
#include <gtest/gtest.h>
#include <sched.h>

#include <atomic>
#include <thread>
#include <vector>

#include <trireme/base/bell.h>

namespace trireme::tests {
namespace {

/// This thread and some that compute, on one core.
class Crowded {
 public:
  explicit Crowded(int others) {
    CPU_ZERO(&before_);
    EXPECT_EQ(sched_getaffinity(0, sizeof before_, &before_), 0);
    cpu_set_t one;
    CPU_ZERO(&one);
    CPU_SET(sched_getcpu(), &one);
    EXPECT_EQ(sched_setaffinity(0, sizeof one, &one), 0);  // what is started from now on inherits it
    for (int i = 0; i < others; i++)
      threads_.emplace_back([this] {
        while (!over_.load(std::memory_order_relaxed)) computed_.fetch_add(1, std::memory_order_relaxed);
      });
    while (computed_.load() == 0) std::this_thread::yield();
  }
  ~Crowded() {
    over_.store(true);
    for (std::thread& thread : threads_) thread.join();
    sched_setaffinity(0, sizeof before_, &before_);
  }

 private:
  cpu_set_t before_;
  std::atomic<bool> over_{false};
  std::atomic<uint64_t> computed_{0};
  std::vector<std::thread> threads_;
};

/// With six beside it, 5,000 yields take more than a minute.
TEST(Bell, WhoLooksOnIsNotLateOnACrowdedCore) {
  const Crowded crowded(6);
  for (const bool stubborn : {true, false}) {
    Bell bell;
    Patience patience{4000, 5000};
    patience.stubborn = stubborn;
    const auto start = Clock::now();
    EXPECT_FALSE(await(bell, patience, Deadline(Seconds(0.2)), [] { return false; }));
    EXPECT_GE(seconds_since(start), 0.2);
    EXPECT_LT(seconds_since(start), 8) << (stubborn ? "looking on" : "giving way");
  }
}

TEST(Bell, WhatIsReadyIsFoundWithoutAClock) {
  Patience patience{.yields = 100, .stubborn = true};
  int looks = 0, asked = 0;
  EXPECT_TRUE(look(
      patience, [&] { return ++looks == 10; }, [] {},
      [&] {
        asked++;
        return true;
      }));
  EXPECT_EQ(asked, 0);
  EXPECT_FALSE(look(
      patience, [&] { return ++looks < 0; }, [] {}, [] { return true; }));
  EXPECT_LE(looks, 10 + kYieldsAtATime);
}

TEST(Bell, ARingIsHeardByWhoSleeps) {
  Bell bell;
  std::atomic<bool> ready{false};
  Patience none{0, 0};
  std::thread other([&] {
    while (bell.sleepers.load() == 0) std::this_thread::yield();
    ready.store(true);
    ring(bell);
  });
  EXPECT_TRUE(await(bell, none, Deadline(Seconds(30)), [&] { return ready.load(); }));
  other.join();
}

}  // namespace
}  // namespace trireme::tests
