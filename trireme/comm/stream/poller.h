#pragma once
// Sleeps until a socket or another thread has news.
#include <cstdint>
#include <vector>

#include <trireme/base/clock.h>
#include <trireme/base/descriptor.h>

namespace trireme::comm::stream {

class Poller {
 public:
  Poller();

  struct Event {
    size_t peer = 0;
    bool readable = false;  // or it has ended
    bool writable = false;
  };
  /// Readable is always looked for. Thread-safe.
  void add(int socket, size_t peer);
  void look_for_room(int socket, size_t peer, bool wanted);
  void remove(int socket);
  /// Ends a wait, or the next one. Thread-safe.
  void ring();
  /// One thread. No events: the bell rang, or the time is up.
  const std::vector<Event>& wait(const Deadline& deadline);

 private:
  Descriptor epoll_, bell_;
  std::vector<Event> events_;
};

}  // namespace trireme::comm::stream
