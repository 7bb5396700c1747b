#pragma once
// Point to point: each message begins with a packet of its own, on the thread of the caller.
#include <deque>
#include <map>

#include <trireme/comm/network/wire.h>

namespace trireme::comm::network {

/// Not thread-safe, but independent of the collectives that are under way on the same wire.
class Letters {
 public:
  explicit Letters(Wire& wire) : wire_(wire) {}

  /// A small one is copied and returns at once, unless kUnread of them are under way to this peer; a large one blocks
  /// until the engine has taken it.
  void send(const void* data, size_t count, DType type, int to, std::string_view name);
  /// Blocks until it is there. Throws Mismatch when it is not what was sent.
  void receive(void* data, size_t count, DType type, int from, std::string_view name);
  /// Blocks until nothing is under way.
  void flush();

 private:
  static constexpr size_t kUnread = 64;
  struct Sent {
    std::unique_ptr<Packet> packet;
    std::unique_ptr<Message> message;
  };

  void flush(int to, size_t left);

  Wire& wire_;
  std::map<int, std::deque<Sent>> sent_;  // by peer
};

}  // namespace trireme::comm::network
