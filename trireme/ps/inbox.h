#pragma once
// What other threads want the service's thread to do.
#include <deque>
#include <exception>
#include <functional>
#include <utility>

#include <trireme/base/bell.h>
#include <trireme/base/lock.h>

namespace trireme::ps {

class Models;

/// Thread-safe, but open(), drain() and close(), which only the service's thread calls.
class Inbox {
 public:
  using Errand = std::function<void(Models&)>;

  explicit Inbox(Bell& bell) : bell_(bell) {}

  /// The service's thread does it.
  void post(Errand errand) {
    {
      const Lock lock(mutex_);
      errands_.push_back(std::move(errand));
      waiting_.store(true);
    }
    ring(bell_);
  }

  /// This thread does it, at once, if the service is idle and nothing waits: to wake another one would take longer than
  /// most errands. Else as post().
  template <class Idle>
  void run(Errand errand, const Idle& idle_after) {
    if (turn_.try_lock()) {
      const Lock turn(turn_, std::adopt_lock);
      if (models_ != nullptr && empty()) {
        if (done_here(errand, idle_after)) return;
        errand = [](Models&) {};
      }
    }
    post(std::move(errand));
  }

  bool empty() const { return !waiting_.load(); }

  /// Whoever uses the models holds this; from open() to close(), other threads may.
  Mutex& turn() TRIREME_RETURNS_LOCK(turn_) { return turn_; }
  void open(Models& models) {
    const Lock lock(turn_);
    models_ = &models;
  }
  void close() {
    const Lock lock(turn_);
    models_ = nullptr;
  }

  /// Runs all errands, in order. False when there was none. Throws what an errand has thrown.
  bool drain(Models& models) TRIREME_REQUIRES(turn_) {
    if (empty()) return false;
    if (failure_) std::rethrow_exception(std::exchange(failure_, nullptr));
    std::deque<Errand> errands;
    {
      const Lock lock(mutex_);
      errands.swap(errands_);
      waiting_.store(false);
    }
    for (const Errand& errand : errands) errand(models);
    return true;
  }

 private:
  /// Whether the service need not wake after it.
  template <class Idle>
  bool done_here(const Errand& errand, const Idle& idle_after) TRIREME_REQUIRES(turn_) {
    try {
      errand(*models_);
      return idle_after(*models_);
    } catch (...) {
      failure_ = std::current_exception();
      return false;
    }
  }

  Bell& bell_;
  Mutex mutex_;
  std::deque<Errand> errands_ TRIREME_GUARDED_BY(mutex_);
  std::atomic<bool> waiting_{false};
  Mutex turn_;
  Models* models_ TRIREME_GUARDED_BY(turn_) TRIREME_PT_GUARDED_BY(turn_) = nullptr;
  std::exception_ptr failure_ TRIREME_GUARDED_BY(turn_);
};

}  // namespace trireme::ps
