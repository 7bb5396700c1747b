#pragma once
// Messages from rank to rank of a machine, apart from the rounds.
//
// Each pair of ranks has a one-way *box* in each direction, with room for two *letters*, so that one is written while
// the other is read. A message is cut into letters. Who waits, for anything, takes letters out of its boxes, and keeps
// what nobody has asked for yet: so senders never wait for a rank that itself waits.
#include <deque>

#include <trireme/comm/communicator.h>
#include <trireme/comm/shm/stages.h>

namespace trireme::comm::shm {

/// Not thread-safe. send() and receive() block, with the deadline of the rounds; the other calls do not.
class Mail {
 public:
  static size_t bytes(int ranks);  // of each rank's boxes
  Mail(Rounds& rounds, SharedBlock block);
  Mail(const Mail&) = delete;
  Mail& operator=(const Mail&) = delete;

  void send(const void* data, size_t count, DType type, int to, std::string_view name);
  void receive(void* data, size_t count, DType type, int from, std::string_view name);
  Started start_send(const void* data, size_t count, DType type, int to, std::string_view name);
  Started start_receive(void* data, size_t count, DType type, int from, std::string_view name);
  /// Writes and reads what can be written and read now. To be done in every wait of this rank.
  void serve();

 private:
  struct Box;
  template <class Await>
  class Handle;
  struct Message {
    std::byte* data = nullptr;
    size_t count = 0;
    DType type = DType::u8;
    std::string_view name;
    size_t passed = 0;  // bytes that were sent or have come
    bool done = false;
    std::exception_ptr error;     // why it will never be done
    std::string text;             // the name, where nobody else keeps it
    std::vector<std::byte> kept;  // the data, of one that came before it was asked for
    size_t bytes() const { return count * size_of(type); }
  };
  using Queue = std::deque<std::shared_ptr<Message>>;
  struct Peer {
    Queue leaving, expected;
    Queue early;  // came before they were asked for; the last may be on its way
  };

  Box& box(int from, int to) const;
  Peer& peer(int rank) { return peers_[static_cast<size_t>(rank)]; }
  void check(int other, std::string_view verb, std::string_view name) const;
  bool post(Box& box, Message& message, int to);
  void serve_leaving(int to);
  void serve_arriving(int from);
  void take(Box& box, Message& message, int from);
  void hand_over(Message& kept, Message& wanted, int from) const;
  void compare(const Message& wanted, size_t count, DType type, std::string_view name, int from) const;
  template <class Pass>
  void pass_now(Queue& queue, Message& message, const Pass& pass);
  void await_sent(const Message& message, int to);
  void await_received(const Message& message, int from);

  Rounds& rounds_;
  SharedBlock block_;
  size_t letter_bytes_;
  std::vector<Peer> peers_;
};

}  // namespace trireme::comm::shm
