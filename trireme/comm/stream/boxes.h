#pragma once
// What waits to be sent to a peer, and what is expected from it: which bytes are next on the connection, without a
// connection or a thread. One thread at a time.
#include <deque>
#include <span>
#include <unordered_map>
#include <vector>

#include <trireme/base/lock.h>
#include <trireme/comm/stream/frames.h>

namespace trireme::comm::stream {

/// A message under way, in its owner's memory.
struct Flight {
  std::byte* data = nullptr;
  size_t bytes = 0;
  uint32_t tag = 0;
  size_t moved = 0;     // bytes of it that were read or written
  bool begun = false;   // sent: its head has gone
  bool moving = false;  // a thread is reading or writing its memory, without the lock
  bool done = false;
  Condition news;  // of the two above
};

/// By tag, in the order of posting. Tags that nothing is left of are forgotten.
template <class What>
class ByTag {
 public:
  void push(uint32_t tag, What what) { queues_[tag].push_back(std::move(what)); }
  bool has(uint32_t tag) const { return queues_.contains(tag); }
  What* front(uint32_t tag) {
    const auto found = queues_.find(tag);
    return found == queues_.end() ? nullptr : &found->second.front();
  }
  void pop(uint32_t tag) {
    const auto found = queues_.find(tag);
    found->second.pop_front();
    if (found->second.empty()) queues_.erase(found);
  }
  /// True when it was there.
  bool remove(uint32_t tag, const What& what) {
    const auto found = queues_.find(tag);
    if (found == queues_.end() || std::erase(found->second, what) == 0) return false;
    if (found->second.empty()) queues_.erase(found);
    return true;
  }
  bool empty() const { return queues_.empty(); }

 private:
  std::unordered_map<uint32_t, std::deque<What>> queues_;
};

/// To one peer.
class Outbox {
 public:
  void add(Flight& flight);
  /// The peer has posted a receive for a long one of that tag.
  void grant(uint32_t tag);
  /// Whose bytes are next; null: nobody's.
  Flight* front() { return ready_.empty() ? nullptr : ready_.front(); }
  /// All of front() is on its way.
  void pop() { ready_.pop_front(); }
  /// Its memory goes. False when a part of it has left: nothing sensible can follow.
  bool drop(Flight& flight);

 private:
  void advance(uint32_t tag);
  std::deque<Flight*> ready_;
  ByTag<Flight*> waiting_;                        // for grants, or behind one that does
  std::unordered_map<uint32_t, size_t> granted_;  // that nothing has used yet
};

/// From one peer. What comes is a head, the bytes that it announces, the next head.
class Inbox {
 public:
  /// A receive is posted. What has come before is copied: it may be done at once.
  void expect(Flight& flight);
  /// Where the next bytes go: never empty.
  std::span<std::byte> room();
  /// Whose memory that is; null: this box's.
  Flight* receiver() { return receiver_; }
  /// So many of them have come. Returns what is complete now, or null. Throws Corruption for what cannot be meant; the
  /// box is of no more use then.
  Flight* filled(size_t bytes);
  /// Its memory goes. False when a part of it has come: nothing sensible can follow.
  bool drop(Flight& flight);

 private:
  Flight* begin_frame();
  Flight* end_frame();

  std::array<std::byte, kHeadBytes> head_bytes_{};
  Head head_;
  size_t got_ = 0;  // of the frame, its head included
  Flight* receiver_ = nullptr;
  std::vector<std::byte> unasked_;
  ByTag<Flight*> expected_;
  ByTag<std::vector<std::byte>> early_;
  size_t early_bytes_ = 0;
};

}  // namespace trireme::comm::stream
