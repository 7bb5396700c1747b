#include <fcntl.h>
#include <fmt/format.h>
#include <netdb.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <memory>

#include <trireme/base/error.h>
#include <trireme/cluster/coordination/reach.h>

namespace trireme::cluster {
namespace {

constexpr Seconds kOneAddress{5};  // before the name's next address is tried, and then all again
constexpr Seconds kProbe{2};       // for a look at the other side's TLS

std::string numeric(const sockaddr_storage& address, socklen_t size) {
  std::array<char, NI_MAXHOST> host{};
  if (getnameinfo(reinterpret_cast<const sockaddr*>(&address), size, host.data(), host.size(), nullptr, 0,
                  NI_NUMERICHOST) != 0)
    return "";
  return host.data();
}

Reached reach_unix(const std::string& address) {
  const std::string name = address.substr(kUnixSocket.size());
  sockaddr_un to{};
  to.sun_family = AF_UNIX;
  if (name.size() + 1 > sizeof to.sun_path) return {{}, "", "", "the socket's name is too long"};
  std::copy(name.begin(), name.end(), to.sun_path + 1);  // behind a zero: it has no file
  Reached reached;
  Descriptor socket_(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  const auto size = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size());
  if (connect(socket_.get(), reinterpret_cast<const sockaddr*>(&to), size) != 0) {
    reached.fault = errno_text();
    return reached;
  }
  reached.target = address;
  reached.socket = std::move(socket_);
  return reached;
}

/// 0, or the errno of a connect that is given until the deadline, or until `interrupt` becomes readable.
int connect_within(int socket, const addrinfo& to, const Deadline& deadline, int interrupt) {
  if (connect(socket, to.ai_addr, to.ai_addrlen) == 0) return 0;
  if (errno != EINPROGRESS) return errno;
  pollfd polls[] = {{socket, POLLOUT, 0}, {interrupt, POLLIN, 0}};
  if (poll(polls, 2, static_cast<int>(std::min(deadline.left().count(), 1e6) * 1e3) + 1) <= 0) return ETIMEDOUT;
  if (polls[0].revents == 0) return EINTR;
  int error = 0;
  socklen_t size = sizeof error;
  return getsockopt(socket, SOL_SOCKET, SO_ERROR, &error, &size) == 0 ? error : errno;
}

}  // namespace

Endpoint endpoint_of(const std::string& text, const char* whom) {
  if (text.starts_with(kUnixSocket)) return {text, ""};
  const size_t colon = text.rfind(':');
  if (colon == std::string::npos || colon == 0 || colon + 1 == text.size() ||
      text.find_first_not_of("0123456789", colon + 1) != std::string::npos)
    fail<InvalidArgument>("'{}' is not the address of {}: give host:port", text, whom);
  std::string host = text.substr(0, colon);
  if (host.size() > 2 && host.front() == '[' && host.back() == ']') host = host.substr(1, host.size() - 2);
  return {host, text.substr(colon + 1)};
}

Reached reach(const Endpoint& endpoint, const Deadline& deadline, int interrupt) {
  if (endpoint.port.empty()) return reach_unix(endpoint.host);
  addrinfo hints{}, *found = nullptr;
  hints.ai_socktype = SOCK_STREAM;
  if (const int error = getaddrinfo(endpoint.host.c_str(), endpoint.port.c_str(), &hints, &found); error != 0)
    return {{}, "", "", fmt::format("the name {} is not known ({})", endpoint.host, gai_strerror(error))};
  const std::unique_ptr<addrinfo, decltype(&freeaddrinfo)> owner(found, freeaddrinfo);
  Reached reached;
  for (const addrinfo* to = found; to != nullptr; to = to->ai_next) {
    Descriptor socket_(socket(to->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    if (const int error =
            connect_within(socket_.get(), *to, Deadline(std::min(kOneAddress, deadline.left())), interrupt);
        error != 0) {
      reached.fault = errno_text(error);
      continue;
    }
    sockaddr_storage own{}, theirs{};
    socklen_t own_size = sizeof own, their_size = sizeof theirs;
    getsockname(socket_.get(), reinterpret_cast<sockaddr*>(&own), &own_size);
    getpeername(socket_.get(), reinterpret_cast<sockaddr*>(&theirs), &their_size);
    const bool six = to->ai_family == AF_INET6;
    reached.target = fmt::format("{}:{}{}{}:{}", six ? "ipv6" : "ipv4", six ? "[" : "", numeric(theirs, their_size),
                                 six ? "]" : "", endpoint.port);
    reached.address = numeric(own, own_size);
    reached.socket = std::move(socket_);
    const int flags = fcntl(reached.socket.get(), F_GETFL);
    fcntl(reached.socket.get(), F_SETFL, flags & ~O_NONBLOCK);
    break;
  }
  return reached;
}

std::string joined(const std::string& address, int port) {
  return address.find(':') == std::string::npos ? fmt::format("{}:{}", address, port)
                                                : fmt::format("[{}]:{}", address, port);
}

std::string listen_fault(const std::string& address, int port) {
  addrinfo hints{}, *found = nullptr;
  hints.ai_flags = AI_PASSIVE;
  hints.ai_socktype = SOCK_STREAM;
  if (const int error = getaddrinfo(address.c_str(), std::to_string(port).c_str(), &hints, &found); error != 0)
    return gai_strerror(error);
  const std::unique_ptr<addrinfo, decltype(&freeaddrinfo)> owner(found, freeaddrinfo);
  const Descriptor probe(socket(found->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0));
  const int on = 1;
  setsockopt(probe.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
  const bool bound = bind(probe.get(), found->ai_addr, found->ai_addrlen) == 0 && listen(probe.get(), 1) == 0;
  return bound ? "unknown reason" : errno_text();
}

std::string tls_fault(const Endpoint& endpoint, const std::optional<Certificates>& own, const std::string& folder) {
  const Deadline deadline(kProbe);
  const Reached reached = reach(endpoint, deadline);
  if (!reached.socket) return "";
  if (!own)
    return speaks_tls(reached.socket.get(), deadline)
               ? "speaks TLS: give --tls or TRIREME_TLS with a copy of its folder of certificates"
               : "";
  const std::string fault = handshake_fault(reached.socket.get(), *own, deadline);
  return fault.empty() ? "" : fmt::format("{} (ours is {})", fault, folder);
}

}  // namespace trireme::cluster
