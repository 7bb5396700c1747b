#pragma once
// Waiting for news that other threads or processes bring.
#include <algorithm>
#include <atomic>
#include <cstdint>
#include <thread>

#include <trireme/base/clock.h>
#include <trireme/base/futex.h>

namespace trireme {

/// Somebody who waits, and may sleep. Lives in this process or in memory that processes share; zero bytes are a bell.
struct alignas(64) Bell {
  std::atomic<uint32_t> rings{0};
  std::atomic<uint32_t> sleepers{0};
};

/// Wakes whoever sleeps on the bell, now or in a moment.
inline void wake(Bell& bell) {
  bell.rings.fetch_add(1);
  futex_wake_all(bell.rings);
}

/// Call after a sequentially consistent change that the waiter looks for. Costs a load while nobody sleeps.
inline void ring(Bell& bell) {
  if (bell.sleepers.load() != 0) wake(bell);
}

/// How long to look before sleeping. Each waiter has its own, as it learns from its waits.
struct Patience {
  int spins = 0, yields = 0;
  int most_crowded = 100;  // 0: it does not learn
  bool stubborn = false;   // looks on even where somebody else wanted this core
  int crowded = 0;         // waits to come that sleep at once, because somebody else wanted this core
  int penalty = 0;         // how many they were last time: twice as many where it happens again, none where it does not

  void learn_crowded() {
    penalty = std::min(std::max(4, 2 * penalty), most_crowded);
    crowded = penalty;
  }
};

constexpr Seconds kAnotherRan{50e-6};  // a yield that took longer gave the core to somebody who computes

/// Waking a sleeper costs tens of microseconds: whoever has a core to itself looks for a while. Where processes
/// outnumber the cores, looking keeps others from what is waited for.
constexpr Patience patience_for(int processes, int cores) {
  return processes > cores ? Patience{0, 30} : Patience{4000, 5000};
}

constexpr int kYieldsAtATime = 16;  // then time is looked at: on a crowded core each yield may take milliseconds

/// Looks for `ready()` for as long as there is patience, and time: `passed()` is asked now and then. Who yields to
/// somebody who computes gets the core back milliseconds later, whatever happens; who sleeps gets it when the bell
/// rings. `meanwhile()` is done between looks, once nothing has happened for a while.
template <class Ready, class Meanwhile, class Passed>
bool look(Patience& patience, const Ready& ready, const Meanwhile& meanwhile, const Passed& passed) {
  if (patience.crowded > 0) {
    patience.crowded--;
    return false;
  }
  for (int i = 0; i < patience.spins; i++) {
    if (ready()) return true;
    __builtin_ia32_pause();
  }
  for (int i = 0; i < patience.yields; i++) {
    meanwhile();
    if (ready()) return true;
    if (i % kYieldsAtATime == kYieldsAtATime - 1 && passed()) return false;
    if (patience.stubborn) {
      std::this_thread::yield();
      continue;
    }
    const auto before = Clock::now();
    std::this_thread::yield();
    if (Clock::now() - before > kAnotherRan) {
      patience.learn_crowded();
      return false;
    }
    patience.penalty = 0;
  }
  return false;
}

/// Sleeps until the bell rings or the deadline passes, unless `awake()` holds. May return early.
template <class Awake>
void doze(Bell& bell, const Deadline& deadline, const Awake& awake) {
  const uint32_t rings = bell.rings.load();
  struct Asleep {  // awake() may throw
    explicit Asleep(Bell& at) : bell(at) { bell.sleepers.fetch_add(1); }
    ~Asleep() { bell.sleepers.fetch_sub(1); }
    Bell& bell;
  } const asleep(bell);
  if (!awake()) futex_wait(bell.rings, rings, deadline.left());
}

/// Waits until `ready()`; false when the deadline passes first. Who makes it ready rings `bell` afterwards.
template <class Ready>
bool await(Bell& bell, Patience& patience, const Deadline& deadline, const Ready& ready) {
  if (look(
          patience, ready, [] {}, [&] { return deadline.passed(); }))
    return true;
  while (!ready()) {
    if (deadline.passed()) return false;
    doze(bell, deadline, ready);
  }
  return true;
}

}  // namespace trireme
