// What `make locks` must refuse: scripts/check_locks looks at this file first, and wants a fault with the given words
// on each line that is marked, and on no other. It belongs to no program.
#include <chrono>
#include <mutex>

#include <trireme/base/lock.h>

namespace trireme::tests {

class Account {
 public:
  int read() const { return balance_; }  // refused: requires holding mutex 'mutex_'
  void write() { balance_ = 1; }         // refused: requires holding mutex 'mutex_'
  void call() { add(1); }                // refused: requires holding mutex 'mutex_'
  void pass() { clear(balance_); }       // refused: requires holding mutex 'mutex_'
  int follow() const { return *same_; }  // refused: requires holding mutex 'mutex_'
  void keep() { mutex_.lock(); }         // refused: still held at the end of function
  void let_go() { mutex_.unlock(); }     // refused: that was not held
  static void clear(int& money) { money = 0; }

  void wait(Lock& lock) {
    bell_.wait(lock, [&] { return balance_ > 0; });  // refused: requires holding mutex 'mutex_'
  }
  void let_go_too_early() {
    Lock lock(mutex_);
    lock.unlock();
    add(1);  // refused: requires holding mutex 'mutex_'
  }
  void use_while_let_go() TRIREME_REQUIRES(mutex_) {
    const Unlocked meanwhile(mutex_);
    add(1);  // refused: requires holding mutex 'mutex_'
  }
  void take_twice() {
    const Lock lock(mutex_);
    const Lock again(mutex_);  // refused: that is already held
  }
  void take_what_the_caller_has() TRIREME_REQUIRES(mutex_) {
    tell();  // refused: while mutex 'mutex_' is held
  }
  void guess() {
    static_cast<void>(mutex_.try_lock());
    balance_ = 1;  // refused: requires holding mutex 'mutex_'
  }

  // Nothing of this is refused.
  void tell() TRIREME_EXCLUDES(mutex_) {
    {
      const Lock lock(mutex_);
      add(1);
    }
    bell_.notify_all();
  }
  bool spend() {
    Lock lock(mutex_);
    const auto rich = [&]() TRIREME_REQUIRES(mutex_) { return balance_ > 0; };
    if (!bell_.wait_for(lock, std::chrono::seconds(1), rich)) return false;
    lock.unlock();
    tell();
    lock.lock();
    for (int i = 0; i < 2 && rich(); i++) add(-1);
    pause();
    return *same_ == 0;
  }
  bool try_to_spend() {
    if (!mutex_.try_lock()) return false;
    const Lock lock(mutex_, std::adopt_lock);
    add(-1);
    return true;
  }
  Mutex& mutex() TRIREME_RETURNS_LOCK(mutex_) { return mutex_; }
  void add(int money) TRIREME_REQUIRES(mutex_) { balance_ += money; }

 private:
  void pause() TRIREME_REQUIRES(mutex_) {
    const Unlocked meanwhile(mutex_);
    tell();
  }

  Mutex mutex_;
  Condition bell_;
  int balance_ TRIREME_GUARDED_BY(mutex_) = 0;
  int* const same_ TRIREME_PT_GUARDED_BY(mutex_) = &balance_;
};

void add_to_both(Account& one, Account& other) {
  const Lock lock(one.mutex());
  one.add(1);
  other.add(1);  // refused: requires holding mutex 'other.mutex_'
}

class Unseen {
  Mutex idle_;        // refused: guards nothing
  std::mutex plain_;  // refused: std::mutex
};

}  // namespace trireme::tests
