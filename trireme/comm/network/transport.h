#pragma once
// Messages between ranks of different machines: the little that an engine has to provide. Collectives are built on it
// once, in communicator.cpp.
#include <cstddef>
#include <cstdint>
#include <memory>

#include <trireme/base/clock.h>

namespace trireme::comm::network {

/// A message under way. Its memory is off limits until wait() has returned. Destroying it earlier is for groups that
/// have failed.
class Message {
 public:
  virtual ~Message() = default;
  /// Blocks until a sent message's memory may be used again, or until a received one is complete. Throws Timeout when
  /// the deadline passes, PeerLost when the engine reports that the peer is gone or interrupt() was called.
  virtual void wait(const Deadline& deadline) = 0;
};

/// Point to point among `size` ranks. Messages between two ranks with the same tag arrive in the order in which they
/// were sent, and the receiver's size must be the sender's. send() and receive() are called by one thread at a time,
/// while others may wait() for other messages.
class Transport {
 public:
  virtual ~Transport() = default;
  virtual int rank() const = 0;
  virtual int size() const = 0;
  /// Neither call waits for the peer. `tag` is below 32768.
  virtual std::unique_ptr<Message> send(const void* data, size_t bytes, int to, uint32_t tag) = 0;
  virtual std::unique_ptr<Message> receive(void* data, size_t bytes, int from, uint32_t tag) = 0;
  /// From any thread, any number of times: all waits, those under way and those to come, end with PeerLost.
  virtual void interrupt() noexcept = 0;
};

}  // namespace trireme::comm::network
