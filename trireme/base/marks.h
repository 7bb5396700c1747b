#pragma once
// Places in the code at which a test wants to do something, such as to end the process. Nobody listens otherwise, and a
// mark costs a load.
#include <atomic>
#include <cstdint>
#include <string_view>

namespace trireme {

using MarkHook = void (*)(std::string_view place, uint64_t number);

namespace detail {
inline std::atomic<MarkHook> mark_hook{nullptr};
}

/// Calls `hook` at every mark that any thread of this process comes by; null: none.
inline void on_marks(MarkHook hook) { detail::mark_hook.store(hook, std::memory_order_release); }

inline void mark(std::string_view place, uint64_t number = 0) {
  if (const MarkHook hook = detail::mark_hook.load(std::memory_order_relaxed)) hook(place, number);
}

}  // namespace trireme
