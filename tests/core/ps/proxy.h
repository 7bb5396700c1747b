#pragma once
// A TCP proxy on the loopback that cuts connections, for tests of lanes that break.
#include <arpa/inet.h>
#include <fmt/format.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>

#include <array>
#include <atomic>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include <trireme/base/descriptor.h>

namespace trireme::ps::tests {

inline sockaddr_in loopback(int port) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<uint16_t>(port));
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  return address;
}

inline Descriptor connect_loopback(int port) {
  Descriptor socket_(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  const sockaddr_in address = loopback(port);
  if (connect(socket_.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0) return {};
  return socket_;
}

inline int port_of(const std::string& address) { return std::stoi(address.substr(address.rfind(':') + 1)); }

/// Forwards connections to a port of this machine, one thread for all. Resets all of them each time `cut_after` more
/// bytes have passed, `cuts` times.
class Proxy {
 public:
  Proxy(int to, size_t cut_after, int cuts)
      : to_(to), cut_after_(cut_after), left_(cuts), stop_(eventfd(0, EFD_CLOEXEC)) {
    listener_ = Descriptor(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    sockaddr_in address = loopback(0);
    socklen_t size = sizeof address;
    if (bind(listener_.get(), reinterpret_cast<sockaddr*>(&address), size) != 0 || listen(listener_.get(), 16) != 0)
      throw std::runtime_error("no proxy");
    getsockname(listener_.get(), reinterpret_cast<sockaddr*>(&address), &size);
    port_ = ntohs(address.sin_port);
    thread_ = std::thread([this] { run(); });
  }
  ~Proxy() { close(); }
  Proxy(const Proxy&) = delete;
  Proxy& operator=(const Proxy&) = delete;

  std::string address() const { return fmt::format("127.0.0.1:{}", port_); }
  int cuts() const { return cuts_.load(); }
  /// As if the cable had been pulled, once the next bytes come: nothing passes, nothing is closed.
  void freeze() { frozen_.store(true); }
  /// As if the other machine's process had been killed: all connections are reset, and new ones refused.
  void close() {
    if (!thread_.joinable()) return;
    const uint64_t one = 1;
    [[maybe_unused]] const auto written = write(stop_.get(), &one, sizeof one);
    thread_.join();
    listener_.reset();
    reset_all();
  }

 private:
  struct Pair {
    Descriptor from, to;
  };

  void run() {
    std::vector<char> buffer(64 << 10);
    while (true) {
      std::vector<pollfd> polls = {{stop_.get(), POLLIN, 0}, {listener_.get(), POLLIN, 0}};
      for (const Pair& pair : pairs_)
        for (int socket : {pair.from.get(), pair.to.get()}) polls.push_back({socket, POLLIN, 0});
      if (frozen_.load()) polls.resize(1);
      if (poll(polls.data(), polls.size(), -1) < 0 || polls[0].revents != 0) return;
      if (frozen_.load()) continue;
      if (polls[1].revents != 0) accept_one();
      for (size_t i = 2; i < polls.size(); i++) {
        if (polls[i].revents == 0) continue;
        Pair& pair = pairs_[(i - 2) / 2];
        if (!forward(buffer, polls[i].fd, i % 2 == 0 ? pair.to.get() : pair.from.get())) pair = {};
      }
      std::erase_if(pairs_, [](const Pair& pair) { return !pair.from; });
      if (left_ == 0 || passed_ < cut_after_) continue;
      passed_ = 0;
      left_--;
      cuts_++;
      reset_all();
    }
  }

  void accept_one() {
    Descriptor from(accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC));
    Descriptor to = connect_loopback(to_);
    if (from && to) pairs_.push_back({std::move(from), std::move(to)});
  }

  bool forward(std::vector<char>& buffer, int from, int to) {
    if (from < 0 || to < 0) return true;  // closed in this very round
    const ssize_t got = read(from, buffer.data(), buffer.size());
    if (got <= 0) return false;
    passed_ += static_cast<size_t>(got);
    for (ssize_t sent = 0; sent < got;) {
      const ssize_t now = send(to, buffer.data() + sent, static_cast<size_t>(got - sent), MSG_NOSIGNAL);
      if (now <= 0) return false;
      sent += now;
    }
    return true;
  }

  void reset_all() {
    const linger at_once{1, 0};
    for (const Pair& pair : pairs_)
      for (int socket : {pair.from.get(), pair.to.get()})
        setsockopt(socket, SOL_SOCKET, SO_LINGER, &at_once, sizeof at_once);
    pairs_.clear();
  }

  const int to_;
  const size_t cut_after_;
  int left_, port_ = 0;
  std::atomic<int> cuts_{0};
  std::atomic<bool> frozen_{false};
  size_t passed_ = 0;
  Descriptor listener_, stop_;
  std::vector<Pair> pairs_;
  std::thread thread_;
};

}  // namespace trireme::ps::tests
