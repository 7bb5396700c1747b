// label: unit
// A lock keeps threads apart, also one that was let go meanwhile; a condition wakes who waits. That the compiler
// refuses wrong uses is checked by scripts/check_locks.
#include <gtest/gtest.h>

#include <chrono>
#include <mutex>
#include <stdexcept>
#include <thread>
#include <type_traits>
#include <vector>

#include <trireme/base/clock.h>
#include <trireme/base/lock.h>

namespace trireme::tests {
namespace {

constexpr Seconds kLong{60};

/// Nothing is added to what the standard library has: neither room nor, as all is inline, time.
static_assert(sizeof(Mutex) == sizeof(std::mutex));
static_assert(sizeof(Lock) == sizeof(std::unique_lock<std::mutex>));
static_assert(sizeof(Condition) == sizeof(std::condition_variable));
static_assert(!std::is_copy_constructible_v<Lock> && !std::is_move_constructible_v<Lock>);

/// Asked by a thread of its own: the one that holds it must not.
bool is_free(Mutex& mutex) {
  bool free = false;
  std::thread([&] {
    if (!mutex.try_lock()) return;
    const Lock lock(mutex, std::adopt_lock);
    free = true;
  }).join();
  return free;
}

TEST(Lock, HoldsUntilItsEndOrUntilItIsTold) {
  Mutex mutex;
  {
    Lock lock(mutex);
    EXPECT_FALSE(is_free(mutex));
    lock.unlock();
    EXPECT_TRUE(is_free(mutex));
    lock.lock();
    EXPECT_FALSE(is_free(mutex));
  }
  EXPECT_TRUE(is_free(mutex));
  {
    Lock lock(mutex);
    lock.unlock();
  }
  EXPECT_TRUE(is_free(mutex));
}

TEST(Lock, TakesOverWhatTryLockGot) {
  Mutex mutex;
  ASSERT_TRUE(mutex.try_lock());
  {
    const Lock lock(mutex, std::adopt_lock);
    EXPECT_FALSE(is_free(mutex));
  }
  EXPECT_TRUE(is_free(mutex));
}

TEST(Lock, LetsGoMeanwhileAlsoWhenSomethingThrows) {
  Mutex mutex;
  {
    const Lock lock(mutex);
    try {
      const Unlocked meanwhile(mutex);
      EXPECT_TRUE(is_free(mutex));
      throw std::runtime_error("no");
    } catch (const std::runtime_error&) {
      EXPECT_FALSE(is_free(mutex));
    }
  }
  EXPECT_TRUE(is_free(mutex));
}

TEST(Lock, KeepsThreadsApart) {
  Mutex mutex;
  int count = 0;
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; i++)
    threads.emplace_back([&] {
      for (int turn = 0; turn < 10'000; turn++) {
        const Lock lock(mutex);
        count++;
      }
    });
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(count, 40'000);
}

/// A ball that two threads pass to each other, in each kind of wait.
template <class Wait>
void play(const Wait& wait) {
  Mutex mutex;
  Condition passed;
  int ball = 0;
  const auto player = [&](int parity) {
    for (int turn = 0; turn < 100; turn++) {
      Lock lock(mutex);
      wait(passed, lock, [&] { return ball % 2 == parity; });
      ASSERT_EQ(ball % 2, parity);
      ball++;
      passed.notify_one();
    }
  };
  std::thread other([&] { player(1); });
  player(0);
  other.join();
  EXPECT_EQ(ball, 200);
}

TEST(Condition, WakesWhoWaits) {
  const auto late = [] { return Clock::now() + std::chrono::duration_cast<Clock::duration>(kLong); };
  play([](Condition& bell, Lock& lock, auto ready) { bell.wait(lock, ready); });
  play([&](Condition& bell, Lock& lock, auto ready) { EXPECT_TRUE(bell.wait_until(lock, late(), ready)); });
  play([&](Condition& bell, Lock& lock, auto ready) { EXPECT_TRUE(bell.wait_for(lock, kLong, ready)); });
  play([&](Condition& bell, Lock& lock, auto ready) {
    while (!ready()) bell.wait_until(lock, late());
  });
  play([&](Condition& bell, Lock& lock, auto ready) {
    while (!ready()) bell.wait_for(lock, kLong);
  });
}

TEST(Condition, GivesUpAtTheDeadlineWithTheLockHeld) {
  Mutex mutex;
  Condition bell;
  Lock lock(mutex);
  const auto never = [] { return false; };
  EXPECT_FALSE(bell.wait_for(lock, Seconds(0.001), never));
  EXPECT_FALSE(bell.wait_until(lock, Clock::now(), never));
  bell.wait_until(lock, Clock::now());
  EXPECT_FALSE(is_free(mutex));
}

}  // namespace
}  // namespace trireme::tests
