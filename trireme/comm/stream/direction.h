#pragma once
// What sending and receiving have in common: a thread, a connection per peer, and messages under way.
//
// A peer's connection belongs to whoever holds its `use`. Whoever posts a message tries for it, and does what can be
// done at once: short messages and grants leave without waking anybody. The rest is the thread's. It never waits for a
// message's memory, and nobody waits for the network but in Message::wait().
#include <array>
#include <memory>
#include <string>
#include <thread>
#include <unordered_set>
#include <vector>

#include <trireme/base/lock.h>
#include <trireme/comm/network/transport.h>
#include <trireme/comm/stream/boxes.h>
#include <trireme/comm/stream/channel.h>
#include <trireme/comm/stream/poller.h>

namespace trireme::comm::stream {

class Direction {
 public:
  virtual ~Direction();
  Direction(const Direction&) = delete;
  Direction& operator=(const Direction&) = delete;

  /// From any thread, any number of times: all waits, now and later, end with PeerLost.
  void interrupt() noexcept;

 protected:
  struct Peer {
    size_t number = 0;
    std::unique_ptr<Channel> channel{};
    Mutex use{};                                          // of the connection; taken before mutex_
    bool looks_for_room TRIREME_GUARDED_BY(use) = false;  // the socket's buffer was full
    bool again TRIREME_GUARDED_BY(use) = false;           // there is more to do, whatever the socket says
    bool over TRIREME_GUARDED_BY(use) = false;            // nothing will be read or written any more
  };

  /// `channels` by rank; null: no peer.
  explicit Direction(std::vector<std::unique_ptr<Channel>> channels);
  /// Last in the constructor, and first in the destructor, of whoever inherits. `limit`: for farewells.
  void start(const char* name);
  void stop(Seconds limit);

  // ---- what a direction is; errors they throw are the peer's end ----
  /// What can be done now. Sets `again` when it stops before it has to.
  virtual void step(Peer& peer, bool readable) TRIREME_REQUIRES(peer.use) = 0;
  /// Nobody posts any more. True when nothing is left to say or to hear.
  virtual bool part(Peer& peer, bool readable) TRIREME_REQUIRES(peer.use) = 0;
  /// A message that is not done is given up. False when a part of it is on its way.
  virtual bool forget(Flight& flight, size_t peer) TRIREME_REQUIRES(mutex_) = 0;

  // ---- what they need for it ----
  std::unique_ptr<network::Message> under_way(std::unique_ptr<Flight> flight, size_t peer);
  /// From now on it hears of the peer's end.
  void track(Flight& flight, size_t peer) TRIREME_REQUIRES(mutex_) { flights_[peer].insert(&flight); }
  /// Serves the peer now, unless somebody else is at it, who then looks again.
  void hurry(size_t peer);
  /// Hands what was written to the socket; looks for room when there is none. True when all has gone.
  bool flush(Peer& peer) TRIREME_REQUIRES(peer.use);
  bool lost(const Peer& peer) const TRIREME_REQUIRES(mutex_) { return !lost_[peer.number].empty(); }
  /// Its messages, now and later, end with PeerLost and the first reason.
  void lose(size_t peer, const std::string& why);
  void lose_locked(size_t peer, const std::string& why) TRIREME_REQUIRES(mutex_);

  std::vector<std::unique_ptr<Peer>> peers_;
  Mutex mutex_;

 private:
  class UnderWay;
  void work(const char* name);
  void say_farewell();
  /// Has it do what can be done, and takes errors for its end.
  void serve(Peer& peer, bool readable, bool leaving) TRIREME_REQUIRES(peer.use);
  bool readable(size_t peer, const std::vector<Poller::Event>& events) const;

  Poller poller_;
  std::vector<std::string> lost_ TRIREME_GUARDED_BY(mutex_);  // why; "": it is there
  std::vector<std::unordered_set<Flight*>> flights_ TRIREME_GUARDED_BY(mutex_);
  bool interrupted_ TRIREME_GUARDED_BY(mutex_) = false;
  bool stopping_ TRIREME_GUARDED_BY(mutex_) = false;
  Seconds farewell_ TRIREME_GUARDED_BY(mutex_){0};
  std::thread thread_;
};

/// Messages to the others. Grants come back on their connections.
class Outgoing final : public Direction {
 public:
  explicit Outgoing(std::vector<std::unique_ptr<Channel>> channels);
  /// Waits until the others have read what was sent, for a second at most.
  ~Outgoing() override;
  std::unique_ptr<network::Message> send(const void* data, size_t bytes, size_t to, uint32_t tag);

 protected:
  void step(Peer& peer, bool readable) override TRIREME_REQUIRES(peer.use);
  bool part(Peer& peer, bool readable) override TRIREME_REQUIRES(peer.use);
  bool forget(Flight& flight, size_t peer) override TRIREME_REQUIRES(mutex_) { return boxes_[peer].drop(flight); }

 private:
  void read_grants(Peer& peer) TRIREME_REQUIRES(peer.use);
  bool encrypt_some(Peer& peer) TRIREME_REQUIRES(peer.use);
  size_t gather(Peer& peer, Flight*& large) TRIREME_REQUIRES(peer.use);

  struct Line {
    std::array<std::byte, kHeadBytes> head{};
    size_t got = 0;
    std::vector<std::byte> staged{};  // heads and short messages that leave in one record
    bool parted = false, shut = false;
  };
  std::vector<Line> lines_;  // with the peer's use
  std::vector<Outbox> boxes_ TRIREME_GUARDED_BY(mutex_);
};

/// Messages from the others.
class Incoming final : public Direction {
 public:
  explicit Incoming(std::vector<std::unique_ptr<Channel>> channels);
  ~Incoming() override;
  std::unique_ptr<network::Message> receive(void* data, size_t bytes, size_t from, uint32_t tag);

 protected:
  void step(Peer& peer, bool readable) override TRIREME_REQUIRES(peer.use);
  bool part(Peer&, bool) override { return true; }
  bool forget(Flight& flight, size_t peer) override TRIREME_REQUIRES(mutex_) { return boxes_[peer].drop(flight); }

 private:
  void write_grants(Peer& peer) TRIREME_REQUIRES(peer.use);
  size_t read_some(Peer& peer) TRIREME_REQUIRES(peer.use);

  std::vector<Inbox> boxes_ TRIREME_GUARDED_BY(mutex_);
  std::vector<std::vector<uint32_t>> granted_ TRIREME_GUARDED_BY(mutex_);  // tags, to be told
};

}  // namespace trireme::comm::stream
