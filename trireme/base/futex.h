#pragma once
// The two futex calls that waiting across processes needs.
#include <atomic>
#include <cstdint>

#include <trireme/base/clock.h>

namespace trireme {

/// Sleeps while `word` holds `expected`, until woken or `limit` has passed. May return early: re-check the condition.
void futex_wait(std::atomic<uint32_t>& word, uint32_t expected, Seconds limit);

/// Wakes everybody who sleeps on `word`, in any process that maps it.
void futex_wake_all(std::atomic<uint32_t>& word);

}  // namespace trireme
