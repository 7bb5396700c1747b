#pragma once
// Ranks as threads of this process that an engine connects, and memory for them.
#include <deque>
#include <mutex>

#include <trireme/comm/network/communicator.h>

#include "ranks.h"
#include "socket_transport.h"

namespace trireme::tests {

/// Makes the transports of a group, by rank.
using Connect = std::function<std::vector<std::unique_ptr<comm::network::Transport>>(int ranks)>;

/// What connects ranks where nobody says it: a suite that goes through several ways sets it.
inline Connect& connect_here() {
  static Connect here = connect_by_sockets;
  return here;
}

/// Runs `body` once per rank, each in a thread of its own, and joins them all.
inline Outcomes run_network(int ranks, const std::function<void(comm::network::Communicator&)>& body,
                            const comm::network::Options& options = {}, const Connect& connect = connect_here()) {
  auto transports = connect(ranks);
  Outcomes outcomes(transports.size());
  std::vector<std::thread> threads;
  for (size_t rank = 0; rank < transports.size(); rank++)
    threads.emplace_back([&, rank] {
      try {
        comm::network::Communicator group(std::move(transports[rank]), options);
        body(group);
      } catch (...) {
        outcomes[rank] = std::current_exception();
      }
    });
  for (std::thread& thread : threads) thread.join();
  return outcomes;
}

/// Private memory that lives until the end of a test.
class Memory {
 public:
  std::byte* take(size_t bytes) {
    const std::lock_guard lock(mutex_);
    return blocks_.emplace_back(std::max<size_t>(bytes, 1)).data();
  }
  void clear() { blocks_.clear(); }

 private:
  std::mutex mutex_;
  std::deque<std::vector<std::byte>> blocks_;
};

}  // namespace trireme::tests
