#pragma once
// Locks whose rules a compiler checks. A field says which lock guards it, a function which lock its caller holds:
//   Mutex mutex_;
//   std::deque<Answer> answers_ TRIREME_GUARDED_BY(mutex_);
//   void lose(const std::string& why) TRIREME_REQUIRES(mutex_);
// `make locks` has clang look at all uses, constructors and destructors aside; for GCC the words mean nothing. What
// waits for a condition is a lambda that says so: `bell_.wait(lock, [&]() TRIREME_REQUIRES(mutex_) { return stop_; })`.
// The same machine code as std::mutex, std::unique_lock and std::condition_variable, which are inside.
#include <condition_variable>
#include <mutex>
#include <utility>

#if defined(__clang__)
#define TRIREME_THREAD_SAFETY(attribute) __attribute__((attribute))
#else
#define TRIREME_THREAD_SAFETY(attribute)
#endif

// ---- of fields: the lock that guards it, or what it points to ----
#define TRIREME_GUARDED_BY(mutex) TRIREME_THREAD_SAFETY(guarded_by(mutex))
#define TRIREME_PT_GUARDED_BY(mutex) TRIREME_THREAD_SAFETY(pt_guarded_by(mutex))

// ---- of functions: the caller holds it, must not hold it, holds it or no longer does afterwards ----
#define TRIREME_REQUIRES(...) TRIREME_THREAD_SAFETY(requires_capability(__VA_ARGS__))
#define TRIREME_EXCLUDES(...) TRIREME_THREAD_SAFETY(locks_excluded(__VA_ARGS__))
#define TRIREME_ACQUIRE(...) TRIREME_THREAD_SAFETY(acquire_capability(__VA_ARGS__))
#define TRIREME_TRY_ACQUIRE(...) TRIREME_THREAD_SAFETY(try_acquire_capability(__VA_ARGS__))
#define TRIREME_RELEASE(...) TRIREME_THREAD_SAFETY(release_capability(__VA_ARGS__))
/// It returns a reference to this lock.
#define TRIREME_RETURNS_LOCK(mutex) TRIREME_THREAD_SAFETY(lock_returned(mutex))
/// Not looked into; a comment says why that is right.
#define TRIREME_NOT_CHECKED TRIREME_THREAD_SAFETY(no_thread_safety_analysis)

// ---- of classes ----
#define TRIREME_CAPABILITY(name) TRIREME_THREAD_SAFETY(capability(name))
#define TRIREME_SCOPED_CAPABILITY TRIREME_THREAD_SAFETY(scoped_lockable)

namespace trireme {

/// Take it with a Lock.
class TRIREME_CAPABILITY("mutex") Mutex {
 public:
  void lock() TRIREME_ACQUIRE() { mutex_.lock(); }
  void unlock() TRIREME_RELEASE() { mutex_.unlock(); }
  bool try_lock() TRIREME_TRY_ACQUIRE(true) { return mutex_.try_lock(); }

 private:
  friend class Lock;
  std::mutex mutex_;
};

/// Holds a mutex until it is destroyed, or from lock() to unlock(). One thread's.
class TRIREME_SCOPED_CAPABILITY Lock {
 public:
  explicit Lock(Mutex& mutex) TRIREME_ACQUIRE(mutex) : lock_(mutex.mutex_) {}
  /// try_lock() was true.
  Lock(Mutex& mutex, std::adopt_lock_t adopt) TRIREME_REQUIRES(mutex) : lock_(mutex.mutex_, adopt) {}
  ~Lock() TRIREME_RELEASE() {}
  Lock(const Lock&) = delete;
  Lock& operator=(const Lock&) = delete;

  void lock() TRIREME_ACQUIRE() { lock_.lock(); }
  void unlock() TRIREME_RELEASE() { lock_.unlock(); }

 private:
  friend class Condition;
  std::unique_lock<std::mutex> lock_;
};

/// Lets go of a mutex that a caller holds, until it is destroyed: also when what happens meanwhile throws, the caller's
/// Lock finds it as it was.
class TRIREME_SCOPED_CAPABILITY Unlocked {
 public:
  explicit Unlocked(Mutex& mutex) TRIREME_RELEASE(mutex) : mutex_(mutex) { mutex_.unlock(); }
  ~Unlocked() TRIREME_RELEASE() { mutex_.lock(); }
  Unlocked(const Unlocked&) = delete;
  Unlocked& operator=(const Unlocked&) = delete;

 private:
  Mutex& mutex_;
};

/// Waits let go of the lock, and have it again when they return. Those with `ready` return when that is true, or the
/// time is up, and say whether it is; the others also for no reason.
class Condition {
 public:
  void notify_one() noexcept { condition_.notify_one(); }
  void notify_all() noexcept { condition_.notify_all(); }

  template <class Ready>
  void wait(Lock& lock, Ready ready) {
    condition_.wait(lock.lock_, std::move(ready));
  }
  template <class Time>
  void wait_until(Lock& lock, const Time& time) {
    condition_.wait_until(lock.lock_, time);
  }
  template <class Time, class Ready>
  bool wait_until(Lock& lock, const Time& time, Ready ready) {
    return condition_.wait_until(lock.lock_, time, std::move(ready));
  }
  template <class Duration>
  void wait_for(Lock& lock, const Duration& duration) {
    condition_.wait_for(lock.lock_, duration);
  }
  template <class Duration, class Ready>
  bool wait_for(Lock& lock, const Duration& duration, Ready ready) {
    return condition_.wait_for(lock.lock_, duration, std::move(ready));
  }

 private:
  std::condition_variable condition_;
};

}  // namespace trireme
