#pragma once
// Point to point: each message begins with a packet of its own, which carries a small one whole; a large one follows as
// an *enclosure*.
//
// The engines only know blocking waits. What is waited for later therefore has a thread that waits for it: one for each
// peer and direction, made when it is first needed.
#include <deque>
#include <functional>
#include <map>
#include <thread>

#include <trireme/base/lock.h>
#include <trireme/comm/network/ticket.h>
#include <trireme/comm/network/wire.h>

namespace trireme::comm::network {

/// Does jobs in their order, in a thread of its own.
class Line {
 public:
  /// `settled` is called after each job, in that thread.
  Line(Wire& wire, const std::function<void()>& settled);
  /// Waits for the jobs that are left.
  ~Line();
  Line(const Line&) = delete;
  Line& operator=(const Line&) = delete;

  std::shared_ptr<Ticket> add(std::function<void()> job);
  bool idle();

 private:
  struct Job {
    std::function<void()> work;
    std::shared_ptr<Ticket> ticket;
  };
  void work();

  Wire& wire_;
  const std::function<void()>& settled_;
  Mutex mutex_;
  Condition wake_;
  std::deque<Job> jobs_ TRIREME_GUARDED_BY(mutex_);  // the first is being done
  bool stopping_ TRIREME_GUARDED_BY(mutex_) = false;
  std::thread thread_;
};

/// Not thread-safe, but independent of the collectives that are under way on the same wire.
class Letters {
 public:
  /// `settled` is called, in any thread, after something that was started has ended.
  Letters(Wire& wire, std::function<void()> settled) : wire_(wire), settled_(std::move(settled)) {}

  /// Copies the data and returns at once.
  void send(const void* data, size_t count, DType type, int to, std::string_view name);
  /// Blocks until it is there. Throws Mismatch when it is not what was sent.
  void receive(void* data, size_t count, DType type, int from, std::string_view name);
  std::shared_ptr<Ticket> start_send(const void* data, size_t count, DType type, int to, std::string_view name);
  std::shared_ptr<Ticket> start_receive(void* data, size_t count, DType type, int from, std::string_view name);
  /// Bytes whose number the sender alone knows, into the memory that `room` has for them: see Communicator.
  using Room = std::function<void*(size_t bytes)>;
  std::shared_ptr<Ticket> start_receive_any(Room room, int from, std::string_view name);
  /// Blocks until what was sent has been taken. What was to be received ends with an error.
  void close();

 private:
  static constexpr size_t kUnread = 64;
  struct Sent {
    std::unique_ptr<Packet> packet;
    std::unique_ptr<Message> message;
  };
  struct Peer {
    std::deque<Sent> unread;  // small ones that nobody waits for
    std::unique_ptr<Line> out, in;
  };
  using Incoming = std::pair<std::shared_ptr<Packet>, std::shared_ptr<Message>>;

  Line& line(std::unique_ptr<Line>& line);
  std::shared_ptr<Ticket> post(const void* data, const Fingerprint& what, int to, std::shared_ptr<Rooms::Room> room);
  Incoming expect(const Fingerprint& what, int from);
  void finish_receiving(const Incoming& incoming, void* data, const Fingerprint& what, int from);
  void take_data(const Packet& packet, void* data, const Fingerprint& what, int from);

  Wire& wire_;
  std::function<void()> settled_;
  std::map<int, Peer> peers_;
};

}  // namespace trireme::comm::network
