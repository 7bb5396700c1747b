#pragma once
// What other threads want the service's thread to do.
#include <deque>
#include <exception>
#include <functional>
#include <mutex>
#include <utility>

#include <trireme/base/bell.h>

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
      const std::lock_guard lock(mutex_);
      errands_.push_back(std::move(errand));
      waiting_.store(true);
    }
    ring(bell_);
  }

  /// This thread does it, at once, if the service is idle and nothing waits: to wake another one would take longer than
  /// most errands. Else as post().
  template <class Idle>
  void run(Errand errand, const Idle& idle_after) {
    if (const std::unique_lock turn(turn_, std::try_to_lock); turn && models_ != nullptr && empty()) {
      try {
        errand(*models_);
        if (idle_after(*models_)) return;
      } catch (...) {
        failure_ = std::current_exception();
      }
      errand = [](Models&) {};
    }
    post(std::move(errand));
  }

  bool empty() const { return !waiting_.load(); }

  /// Whoever uses the models holds this; from open() to close(), other threads may.
  [[nodiscard]] std::unique_lock<std::mutex> turn() { return std::unique_lock(turn_); }
  void open(Models& models) {
    const std::lock_guard lock(turn_);
    models_ = &models;
  }
  void close() {
    const std::lock_guard lock(turn_);
    models_ = nullptr;
  }

  /// Runs all errands, in order. False when there was none. The turn is held. Throws what an errand has thrown.
  bool drain(Models& models) {
    if (empty()) return false;
    if (failure_) std::rethrow_exception(std::exchange(failure_, nullptr));
    std::deque<Errand> errands;
    {
      const std::lock_guard lock(mutex_);
      errands.swap(errands_);
      waiting_.store(false);
    }
    for (const Errand& errand : errands) errand(models);
    return true;
  }

 private:
  Bell& bell_;
  std::mutex mutex_;
  std::deque<Errand> errands_;  // guarded by mutex_
  std::atomic<bool> waiting_{false};
  std::mutex turn_;
  Models* models_ = nullptr;      // guarded by turn_
  std::exception_ptr failure_{};  // as models_
};

}  // namespace trireme::ps
