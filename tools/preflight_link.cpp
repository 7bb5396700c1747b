// Measuring the way from one host to another, over a plain TCP connection.
//
// The client shows the secret, then sends one letter per request:
//   p  the answer is the wall clock, a double: for latency and clocks
//   s  a double follows, and then any bytes: after so many seconds the answer is the bits per second that arrived, and
//   the connection ends
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <deque>
#include <memory>
#include <thread>
#include <vector>

#include <trireme/base/descriptor.h>
#include <trireme/base/error.h>
#include <trireme/base/process.h>
#include <trireme/cluster/coordination/tls.h>
#include <trireme/cluster/launching/launcher.h>

#include "preflight.h"

namespace trireme::tools {
namespace {

constexpr Seconds kConnect{3}, kAnswer{3}, kIdle{5};
constexpr size_t kBlock = 256 << 10, kMostStrangers = 64;
constexpr int kWarm = 5, kPings = 50;
constexpr double kRampUp = 0.2;  // of the streaming, before which TCP has not found its speed

double wall_clock() { return Seconds(std::chrono::system_clock::now().time_since_epoch()).count(); }

int milliseconds_of(const Deadline& deadline) { return static_cast<int>(std::ceil(deadline.left().count() * 1e3)); }

/// What is ready of `events`; 0 when the deadline passed.
short wait_for(int socket, short events, const Deadline& deadline) {
  pollfd entry{socket, events, 0};
  while (poll(&entry, 1, milliseconds_of(deadline)) < 0)
    if (errno != EINTR) return 0;
  return entry.revents;
}

bool read_all(int socket, void* data, size_t size, const Deadline& deadline) {
  for (size_t done = 0; done < size;) {
    if (wait_for(socket, POLLIN, deadline) == 0) return false;
    const ssize_t got = recv(socket, static_cast<char*>(data) + done, size - done, MSG_DONTWAIT);
    if (got == 0 || (got < 0 && errno != EAGAIN && errno != EINTR)) return false;
    if (got > 0) done += static_cast<size_t>(got);
  }
  return true;
}

/// For a few bytes, which any socket takes at once.
bool write_all(int socket, const void* data, size_t size) {
  return send(socket, data, size, MSG_NOSIGNAL) == static_cast<ssize_t>(size);
}

void send_at_once(int socket) {
  const int on = 1;
  setsockopt(socket, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
}

using Addresses = std::unique_ptr<addrinfo, decltype(&freeaddrinfo)>;

Addresses numeric_address(const std::string& address, int port) {
  addrinfo hints{}, *found = nullptr;
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_NUMERICHOST | AI_NUMERICSERV;
  if (const int code = getaddrinfo(address.c_str(), std::to_string(port).c_str(), &hints, &found); code != 0)
    fail<IoError>("'{}' is not an address: {}", address, gai_strerror(code));
  return {found, freeaddrinfo};
}

// ---- the answering side ----

/// Reads whatever comes for so long; the bits per second that came once TCP had found its speed.
double sink(int socket, Seconds streaming) {
  std::vector<char> block(kBlock);
  const Deadline end(streaming);
  const Seconds counted = streaming * (1 - kRampUp);  // the last part
  double bytes = 0;
  while (wait_for(socket, POLLIN, end) != 0) {
    const ssize_t got = recv(socket, block.data(), block.size(), MSG_DONTWAIT);
    if (got == 0 || (got < 0 && errno != EAGAIN && errno != EINTR)) break;
    if (got > 0 && end.left() < counted) bytes += static_cast<double>(got);
    if (end.passed()) break;
  }
  return bytes * 8 / counted.count();
}

void serve(int socket) {
  send_at_once(socket);
  char request = 0;
  while (read_all(socket, &request, 1, Deadline(kIdle))) {
    double value = wall_clock();
    if (request == 's') {
      if (!read_all(socket, &value, sizeof value, Deadline(kIdle))) return;
      value = sink(socket, Seconds(std::clamp(value, 0.01, 10.0)));
    } else if (request != 'p') {
      return;
    }
    if (!write_all(socket, &value, sizeof value) || request == 's') break;
  }
  // With bytes unread, our close would be a reset that may overtake the answer: the client goes first.
  if (request == 's') wait_for(socket, POLLRDHUP, Deadline(kIdle));
}

// ---- the asking side ----

/// Empty, with errno as the reason, when there is none in time.
Descriptor connected(const std::string& address, int port) {
  const Addresses to = numeric_address(address, port);
  Descriptor socket_(socket(to->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (connect(socket_.get(), to->ai_addr, to->ai_addrlen) == 0) return socket_;
  if (errno != EINPROGRESS) return {};
  int error = ETIMEDOUT;
  socklen_t size = sizeof error;
  if (wait_for(socket_.get(), POLLOUT, Deadline(kConnect)) != 0)
    getsockopt(socket_.get(), SOL_SOCKET, SO_ERROR, &error, &size);
  errno = error;
  return error == 0 ? std::move(socket_) : Descriptor();
}

/// Latency: the median of many. The clock: from the quickest of them, in which there was the least time to be wrong by.
bool ping(int socket, MeasuredLink& link) {
  std::vector<double> trips;
  double quickest = 1e9;
  const Deadline deadline(kAnswer);
  for (int i = 0; i < kWarm + kPings; i++) {
    const double before = wall_clock();
    const auto start = Clock::now();
    double theirs = 0;
    if (!write_all(socket, "p", 1) || !read_all(socket, &theirs, sizeof theirs, deadline)) return false;
    const double trip = seconds_since(start);
    if (i >= kWarm) trips.push_back(trip);
    if (trip < quickest) link.clock = theirs - (before + trip / 2);
    quickest = std::min(quickest, trip);
  }
  std::nth_element(trips.begin(), trips.begin() + kPings / 2, trips.end());
  link.latency = trips[kPings / 2];
  return true;
}

/// Sends until the other side has answered.
bool stream(int socket, Seconds streaming, MeasuredLink& link) {
  const std::vector<char> block(kBlock, 'x');
  const double seconds = streaming.count();
  const Deadline deadline(streaming + kAnswer);
  if (!write_all(socket, "s", 1) || !write_all(socket, &seconds, sizeof seconds)) return false;
  while (true) {
    const short ready = wait_for(socket, POLLIN | POLLOUT, deadline);
    if ((ready & POLLIN) != 0) return read_all(socket, &link.bandwidth, sizeof link.bandwidth, deadline);
    if ((ready & POLLOUT) == 0 || (ready & (POLLERR | POLLHUP)) != 0) return false;
    if (send(socket, block.data(), block.size(), MSG_NOSIGNAL | MSG_DONTWAIT) < 0 && errno != EAGAIN && errno != EINTR)
      return false;
  }
}

}  // namespace

/// Strangers who say nothing wait beside the others, and not before them.
struct Responder::Thread {
  struct Stranger {
    Descriptor socket;
    std::string shown{};  // of the secret, so far
    Deadline deadline{kIdle};
  };
  Descriptor listener, stop{eventfd(0, EFD_CLOEXEC)};
  std::deque<Stranger> strangers;  // at most kMostStrangers, who came first in front
  std::thread thread;

  void run(const std::string& secret) {
    name_thread("trireme-responder");
    while (true) {
      std::erase_if(strangers, [](const Stranger& one) { return one.deadline.passed(); });
      std::vector<pollfd> entries = {{stop.get(), POLLIN, 0}, {listener.get(), POLLIN, 0}};
      for (const Stranger& one : strangers) entries.push_back({one.socket.get(), POLLIN, 0});
      const int longest = strangers.empty() ? -1 : milliseconds_of(strangers.front().deadline);
      if (poll(entries.data(), entries.size(), longest) < 0 && errno != EINTR) return;
      if (entries[0].revents != 0) return;
      for (size_t i = strangers.size(); i-- > 0;)
        if (entries[i + 2].revents != 0) hear(i, secret);
      if (entries[1].revents != 0) admit();
    }
  }

  void admit() {
    Descriptor client(accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC));
    if (!client) return;
    if (strangers.size() == kMostStrangers) strangers.pop_front();
    strangers.push_back({std::move(client)});
  }

  void hear(size_t i, const std::string& secret) {
    std::string& shown = strangers[i].shown;
    const size_t before = shown.size();
    shown.resize(secret.size());
    const ssize_t got = recv(strangers[i].socket.get(), shown.data() + before, shown.size() - before, MSG_DONTWAIT);
    if (got < 0 && (errno == EAGAIN || errno == EINTR)) return shown.resize(before);
    shown.resize(before + static_cast<size_t>(std::max<ssize_t>(0, got)));
    if (got > 0 && shown.size() < secret.size()) return;
    const Stranger known = std::move(strangers[i]);
    strangers.erase(strangers.begin() + static_cast<std::ptrdiff_t>(i));
    if (cluster::same_secret(known.shown, secret)) serve(known.socket.get());
  }
};

Responder::Responder(const std::string& address)
    : secret_(cluster::random_name()), thread_(std::make_unique<Thread>()) {
  const Addresses own = numeric_address(address, 0);
  thread_->listener = Descriptor(socket(own->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  const int socket_ = thread_->listener.get();
  sockaddr_storage bound{};
  socklen_t size = sizeof bound;
  if (bind(socket_, own->ai_addr, own->ai_addrlen) != 0 || listen(socket_, 64) != 0 ||
      getsockname(socket_, reinterpret_cast<sockaddr*>(&bound), &size) != 0)
    fail<IoError>("cannot listen on {}: {}", address, errno_text());
  port_ = ntohs(bound.ss_family == AF_INET6 ? reinterpret_cast<sockaddr_in6&>(bound).sin6_port
                                            : reinterpret_cast<sockaddr_in&>(bound).sin_port);
  thread_->thread = std::thread([thread = thread_.get(), secret = secret_] { thread->run(secret); });
}

Responder::~Responder() {
  eventfd_write(thread_->stop.get(), 1);
  thread_->thread.join();
}

MeasuredLink measure_link(const std::string& address, int port, const std::string& secret, Seconds streaming) try {
  const Descriptor socket = connected(address, port);
  MeasuredLink link;
  if (!socket) {
    link.fault = fmt::format("port {} of {}: {}", port, address, errno_text());
    return link;
  }
  send_at_once(socket.get());
  if (!write_all(socket.get(), secret.data(), secret.size()) || !ping(socket.get(), link) ||
      !stream(socket.get(), streaming, link))
    link.fault = fmt::format("port {} of {}: the connection broke or fell silent", port, address);
  const linger drop{1, 0};  // what was sent for nothing must not stand in the way of the next
  setsockopt(socket.get(), SOL_SOCKET, SO_LINGER, &drop, sizeof drop);
  return link;
} catch (const Error& error) {
  return {.fault = error.what()};
}

}  // namespace trireme::tools
