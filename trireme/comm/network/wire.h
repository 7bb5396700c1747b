#pragma once
// A transport as the collectives use it: several threads may post, every wait has a deadline, and errors say who was
// waited for and in what.
#include <exception>
#include <vector>

#include <trireme/base/advice.h>
#include <trireme/base/lock.h>
#include <trireme/comm/network/lane_metrics.h>
#include <trireme/comm/network/opening.h>
#include <trireme/comm/network/transport.h>

namespace trireme::comm::network {

/// Tags keep apart what ranks may post in different orders. Each collective has its own, so that several can be under
/// way.
constexpr uint32_t kOpeningTag = 0, kLetterTag = 1, kEnclosureTag = 2, kDataTag = 16, kDataTags = 4096;

/// Memory for what arrives, used again and again: fresh pages for every message would cost more than reducing it.
/// Thread-safe.
class Rooms {
 public:
  struct Room {
    std::unique_ptr<std::byte[]> data;
    size_t bytes = 0;
  };
  /// `most`: rooms that wait for use.
  explicit Rooms(size_t most = 8) : most_(most) {}
  /// Not cleared.
  Room take(size_t bytes);
  void put_back(Room room);

 private:
  size_t most_;
  Mutex mutex_;
  std::vector<Room> free_ TRIREME_GUARDED_BY(mutex_);
};

/// Thread-safe.
class Wire {
 public:
  /// `names` are what messages call the ranks; empty: their numbers.
  Wire(std::unique_ptr<Transport> transport, Seconds timeout, Seconds patience, std::vector<int> names,
       std::string timeout_setting, WireMetrics count);

  int rank() const { return rank_; }
  int size() const { return size_; }
  int name_of(int rank) const { return names_[static_cast<size_t>(rank)]; }

  /// Do not wait for the peer.
  std::unique_ptr<Message> send(const void* data, size_t bytes, int to, uint32_t tag, const Fingerprint& what);
  std::unique_ptr<Message> receive(void* data, size_t bytes, int from, uint32_t tag, const Fingerprint& what);
  /// Throws Timeout or PeerLost with the peer's name and the operation's, or the cause that was given to fail().
  void wait(Message& message, int peer, const Fingerprint& what);
  /// The same without the limit, for what somebody else has a deadline for.
  void wait_long(Message& message, int peer, const Fingerprint& what);

  /// Ends all waits, now and later, with `cause`. The first cause stays.
  void fail(std::exception_ptr cause) noexcept;
  std::exception_ptr cause() const;
  /// Throws the cause when there is one.
  void check() const;
  Rooms& rooms() { return rooms_; }
  /// For waits that begin from now on.
  void set_limit(WaitLimit limit);

 private:
  void await_cause();
  WaitLimit limit() const;
  /// The one call of a transport that any thread may make at any time.
  void interrupt() noexcept TRIREME_NOT_CHECKED { transport_->interrupt(); }
  template <class Action>
  auto explained(int peer, const Fingerprint& what, const Action& action);

  std::unique_ptr<Transport> transport_ TRIREME_PT_GUARDED_BY(posting_);
  Seconds patience_;
  int rank_, size_;
  std::vector<int> names_;
  Rooms rooms_;
  Mutex posting_;  // held while the transport takes a message
  WireMetrics count_ TRIREME_GUARDED_BY(posting_);
  mutable Mutex mutex_;
  Condition failed_;
  std::exception_ptr cause_ TRIREME_GUARDED_BY(mutex_);
  WaitLimit limit_ TRIREME_GUARDED_BY(mutex_);
};

}  // namespace trireme::comm::network
