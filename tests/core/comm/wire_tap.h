#pragma once
// Somebody between two hosts who sees, keeps and may change what passes.
#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <atomic>
#include <functional>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include <trireme/base/descriptor.h>
#include <trireme/base/error.h>

namespace trireme::tests {

inline Descriptor loopback_socket(int& port) {
  Descriptor socket(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in address{.sin_family = AF_INET, .sin_port = htons(static_cast<uint16_t>(port))};
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof address;
  auto* const any = reinterpret_cast<sockaddr*>(&address);
  if (port != 0) {
    if (connect(socket.get(), any, size) != 0) fail<IoError>("cannot connect: {}", errno_text());
    return socket;
  }
  if (bind(socket.get(), any, size) != 0 || listen(socket.get(), 16) != 0 || getsockname(socket.get(), any, &size) != 0)
    fail<IoError>("cannot listen: {}", errno_text());
  port = ntohs(address.sin_port);
  return socket;
}

class WireTap {
 public:
  /// Called with what goes from who connects to who is connected to, before it is passed on. One thread at a time.
  using Look = std::function<void(std::byte* data, size_t bytes)>;

  WireTap(int target, Look look) : target_(target), look_(std::move(look)), listener_(loopback_socket(port_)) {
    thread_ = std::thread([this] { accept_all(); });
  }
  ~WireTap() {
    over_ = true;
    thread_.join();
    for (std::thread& thread : pumps_) thread.join();
  }
  int port() const { return port_; }
  /// From now on nothing passes; connections stay as they are.
  void hold() { held_ = true; }

 private:
  bool ready(int socket) const {
    pollfd news{socket, POLLIN, 0};
    return poll(&news, 1, 20) > 0;
  }
  void accept_all() {
    while (!over_) {
      if (!ready(listener_.get())) continue;
      Descriptor left(accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC));
      int port = target_;
      Descriptor right = loopback_socket(port);
      pumps_.emplace_back([this, l = std::move(left), r = std::move(right)] { pump(l.get(), r.get()); });
    }
  }
  void pump(int left, int right) {
    bool open[2] = {true, true};
    std::vector<std::byte> room(64 << 10);
    while (!over_ && (open[0] || open[1])) {
      pollfd news[] = {{open[0] ? left : -1, POLLIN, 0}, {open[1] ? right : -1, POLLIN, 0}};
      if (poll(news, 2, 20) <= 0 || held_) continue;
      for (int way : {0, 1}) {
        if (news[way].revents == 0) continue;
        const ssize_t n = recv(news[way].fd, room.data(), room.size(), 0);
        const int to = way == 0 ? right : left;
        if (n <= 0) {
          open[way] = false;
          shutdown(to, SHUT_WR);
          continue;
        }
        if (way == 0) {
          const std::lock_guard lock(mutex_);
          look_(room.data(), static_cast<size_t>(n));
        }
        for (ssize_t sent = 0; sent < n && !over_;) {
          const ssize_t more = send(to, room.data() + sent, static_cast<size_t>(n - sent), MSG_NOSIGNAL);
          if (more <= 0) break;
          sent += more;
        }
      }
    }
  }

  int target_, port_ = 0;
  Look look_;
  std::mutex mutex_;
  Descriptor listener_;
  std::atomic<bool> over_{false}, held_{false};
  std::thread thread_;
  std::vector<std::thread> pumps_;
};

}  // namespace trireme::tests
