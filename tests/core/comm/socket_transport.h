#pragma once
// A real engine in few lines: ranks of one process, each pair connected by a unix stream socket, a thread per rank that
// reads and writes.
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <map>
#include <mutex>
#include <thread>
#include <vector>

#include <trireme/base/descriptor.h>
#include <trireme/base/error.h>
#include <trireme/comm/network/transport.h>

namespace trireme::tests {

class SocketTransport final : public comm::network::Transport {
 public:
  /// `sockets[p]` leads to rank p; this rank's own is empty.
  SocketTransport(int rank, std::vector<Descriptor> sockets)
      : rank_(rank), bell_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)), peers_(sockets.size()) {
    for (size_t p = 0; p < sockets.size(); p++) peers_[p].socket = std::move(sockets[p]);
    thread_ = std::thread([this] { work(); });
  }
  ~SocketTransport() override {
    {
      const std::lock_guard lock(mutex_);
      stopping_ = true;
    }
    ring();
    thread_.join();
  }

  int rank() const override { return rank_; }
  int size() const override { return static_cast<int>(peers_.size()); }

  std::unique_ptr<comm::network::Message> send(const void* data, size_t bytes, int to, uint32_t tag) override {
    auto job = std::make_shared<Job>(
        Job{.to_send = static_cast<const std::byte*>(data), .bytes = bytes, .head = {tag, bytes}, .peer = to});
    {
      const std::lock_guard lock(mutex_);
      peers_[static_cast<size_t>(to)].leaving.push_back(job);
    }
    ring();
    return std::make_unique<Waiting>(*this, job);
  }

  std::unique_ptr<comm::network::Message> receive(void* data, size_t bytes, int from, uint32_t tag) override {
    auto job = std::make_shared<Job>(
        Job{.room = static_cast<std::byte*>(data), .bytes = bytes, .head = {tag, bytes}, .peer = from});
    const std::lock_guard lock(mutex_);
    Peer& peer = peers_[static_cast<size_t>(from)];
    auto& early = peer.early[tag];
    if (early.empty()) {
      peer.expected[tag].push_back(job);
    } else {
      deliver(*job, early.front());
      early.pop_front();
    }
    return std::make_unique<Waiting>(*this, job);
  }

  void interrupt() noexcept override {
    const std::lock_guard lock(mutex_);
    interrupted_ = true;
    news_.notify_all();
  }

 private:
  struct Head {
    uint64_t tag, bytes;
  };
  struct Job {
    const std::byte* to_send = nullptr;
    std::byte* room = nullptr;
    size_t bytes;
    Head head;
    int peer;
    size_t written = 0;  // head included
    bool done = false, dropped = false;
  };
  struct Peer {
    Descriptor socket;
    std::deque<std::shared_ptr<Job>> leaving;
    std::map<uint64_t, std::deque<std::shared_ptr<Job>>> expected;  // by tag
    std::map<uint64_t, std::deque<std::vector<std::byte>>> early;
    Head head{};
    std::vector<std::byte> body;
    size_t got = 0;  // head included
    bool lost = false;
  };

  class Waiting final : public comm::network::Message {
   public:
    Waiting(SocketTransport& transport, std::shared_ptr<Job> job) : transport_(transport), job_(std::move(job)) {}
    ~Waiting() override {
      const std::lock_guard lock(transport_.mutex_);
      job_->dropped = !job_->done;
    }
    void wait(const Deadline& deadline) override {
      std::unique_lock lock(transport_.mutex_);
      const Peer& peer = transport_.peers_[static_cast<size_t>(job_->peer)];
      const auto over = [&] { return job_->done || peer.lost || transport_.interrupted_; };
      const bool news = transport_.news_.wait_for(lock, deadline.left(), over);
      if (transport_.interrupted_) fail<PeerLost>("interrupted");
      if (job_->done) return;
      if (!news) fail<Timeout>("deadline");
      fail<PeerLost>("the socket to {} was closed", job_->peer);
    }

   private:
    SocketTransport& transport_;
    std::shared_ptr<Job> job_;
  };

  void ring() {
    const uint64_t one = 1;
    [[maybe_unused]] const auto written = write(bell_.get(), &one, sizeof one);
  }

  static void deliver(Job& job, const std::vector<std::byte>& body) {
    if (job.bytes != body.size()) {  // as unforgiving as Gloo
      std::fprintf(stderr, "a message of %zu bytes for a receive of %zu\n", body.size(), job.bytes);
      std::abort();
    }
    if (!job.dropped && !body.empty()) std::memcpy(job.room, body.data(), body.size());
    job.done = true;
  }

  void work() {
    std::unique_lock lock(mutex_);
    while (!stopping_) {
      std::vector<pollfd> polls = {{bell_.get(), POLLIN, 0}};
      for (const Peer& peer : peers_)
        polls.push_back({peer.lost || !peer.socket ? -1 : peer.socket.get(),
                         static_cast<short>(POLLIN | (peer.leaving.empty() ? 0 : POLLOUT)), 0});
      lock.unlock();
      poll(polls.data(), polls.size(), -1);
      lock.lock();
      uint64_t count = 0;
      [[maybe_unused]] const auto drained = read(bell_.get(), &count, sizeof count);
      for (size_t p = 0; p < peers_.size(); p++) {
        if (polls[p + 1].revents != 0) read_from(peers_[p]);
        if (!peers_[p].lost && (polls[p + 1].revents & POLLOUT) != 0) write_to(peers_[p]);
      }
      news_.notify_all();
    }
  }

  void read_from(Peer& peer) {
    while (true) {
      const bool in_head = peer.got < sizeof(Head);
      if (!in_head && peer.got == sizeof(Head) + peer.head.bytes) {
        auto& expected = peer.expected[peer.head.tag];
        if (expected.empty()) {
          peer.early[peer.head.tag].push_back(std::move(peer.body));
        } else {
          deliver(*expected.front(), peer.body);
          expected.pop_front();
        }
        peer.got = 0;
        continue;
      }
      std::byte* const to =
          in_head ? reinterpret_cast<std::byte*>(&peer.head) + peer.got : peer.body.data() + (peer.got - sizeof(Head));
      const size_t room = in_head ? sizeof(Head) - peer.got : peer.head.bytes - (peer.got - sizeof(Head));
      const ssize_t n = recv(peer.socket.get(), to, room, MSG_DONTWAIT);
      if (n < 0 && (errno == EAGAIN || errno == EINTR)) return;
      if (n <= 0) {
        peer.lost = true;
        return;
      }
      peer.got += static_cast<size_t>(n);
      if (peer.got == sizeof(Head)) peer.body.assign(peer.head.bytes, std::byte{});
    }
  }

  void write_to(Peer& peer) {
    while (!peer.leaving.empty()) {
      Job& job = *peer.leaving.front();
      if (job.dropped) {  // its memory is gone: nothing sensible can follow on this socket
        peer.lost = true;
        return;
      }
      const bool in_head = job.written < sizeof(Head);
      const std::byte* const from = in_head ? reinterpret_cast<const std::byte*>(&job.head) + job.written
                                            : job.to_send + (job.written - sizeof(Head));
      const size_t left = in_head ? sizeof(Head) - job.written : job.bytes - (job.written - sizeof(Head));
      if (left > 0) {
        const ssize_t n = ::send(peer.socket.get(), from, left, MSG_DONTWAIT | MSG_NOSIGNAL);
        if (n < 0 && (errno == EAGAIN || errno == EINTR)) return;
        if (n < 0) {  // what the peer has sent before it left may still be read
          peer.leaving.clear();
          return;
        }
        job.written += static_cast<size_t>(n);
      }
      if (job.written < sizeof(Head) + job.bytes) continue;
      job.done = true;
      peer.leaving.pop_front();
    }
  }

  int rank_;
  Descriptor bell_;
  std::mutex mutex_;
  std::condition_variable news_;
  std::vector<Peer> peers_;  // guarded by mutex_, like all below
  bool interrupted_ = false, stopping_ = false;
  std::thread thread_;
};

/// The transports of a group of `ranks`, by rank.
inline std::vector<std::unique_ptr<comm::network::Transport>> connect_by_sockets(int ranks) {
  const auto n = static_cast<size_t>(ranks);
  std::vector<std::vector<Descriptor>> sockets(n);
  for (auto& row : sockets) row.resize(n);
  for (size_t a = 0; a < n; a++)
    for (size_t b = a + 1; b < n; b++) {
      int pair[2];
      if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair) != 0)
        fail<IoError>("no socket pair: {}", errno_text());
      sockets[a][b] = Descriptor(pair[0]);
      sockets[b][a] = Descriptor(pair[1]);
    }
  std::vector<std::unique_ptr<comm::network::Transport>> transports;
  for (size_t r = 0; r < n; r++)
    transports.push_back(std::make_unique<SocketTransport>(static_cast<int>(r), std::move(sockets[r])));
  return transports;
}

}  // namespace trireme::tests
