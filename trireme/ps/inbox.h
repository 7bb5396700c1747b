#pragma once
// What other threads want the service's thread to do.
#include <deque>
#include <functional>
#include <mutex>

#include <trireme/base/bell.h>

namespace trireme::ps {

class Service;

/// Thread-safe, but drain(), which only the service's thread calls.
class Inbox {
 public:
  using Errand = std::function<void(Service&)>;

  explicit Inbox(Bell& bell) : bell_(bell) {}

  void post(Errand errand) {
    {
      const std::lock_guard lock(mutex_);
      errands_.push_back(std::move(errand));
      waiting_.store(true);
    }
    ring(bell_);
  }

  bool empty() const { return !waiting_.load(); }

  /// Runs all errands, in order. False when there was none.
  bool drain(Service& service) {
    if (empty()) return false;
    std::deque<Errand> errands;
    {
      const std::lock_guard lock(mutex_);
      errands.swap(errands_);
      waiting_.store(false);
    }
    for (const Errand& errand : errands) errand(service);
    return true;
  }

 private:
  Bell& bell_;
  std::mutex mutex_;
  std::deque<Errand> errands_;  // guarded by mutex_
  std::atomic<bool> waiting_{false};
};

}  // namespace trireme::ps
