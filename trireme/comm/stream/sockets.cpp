#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <memory>

#include <trireme/base/error.h>
#include <trireme/comm/stream/sockets.h>

namespace trireme::comm::stream {
namespace {

struct FreeAddresses {
  void operator()(addrinfo* list) const { freeaddrinfo(list); }
};
using Addresses = std::unique_ptr<addrinfo, FreeAddresses>;

Addresses look_up(const std::string& host, const std::string& port, int flags) {
  addrinfo hints{.ai_flags = flags, .ai_family = AF_UNSPEC, .ai_socktype = SOCK_STREAM};
  addrinfo* list = nullptr;
  if (const int code = getaddrinfo(host.empty() ? nullptr : host.c_str(), port.c_str(), &hints, &list); code != 0)
    fail<IoError>("'{}' is no address of a host: {}", host, gai_strerror(code));
  return Addresses(list);
}

Descriptor socket_for(const addrinfo& address) {
  Descriptor made(::socket(address.ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (!made) fail<IoError>("no socket: {}", errno_text());
  return made;
}

void send_at_once(const Descriptor& socket) {
  const int yes = 1;
  setsockopt(socket.get(), IPPROTO_TCP, TCP_NODELAY, &yes, sizeof yes);
}

Spot spot_of(const sockaddr* address, socklen_t size) {
  std::array<char, NI_MAXHOST> host{};
  std::array<char, NI_MAXSERV> port{};
  if (const int code = getnameinfo(address, size, host.data(), host.size(), port.data(), port.size(),
                                   NI_NUMERICHOST | NI_NUMERICSERV);
      code != 0)
    fail<IoError>("no numeric address: {}", gai_strerror(code));
  return {host.data(), port.data()};
}

std::string own_name() {
  std::array<char, 256> name{};
  gethostname(name.data(), name.size() - 1);
  return name.data();
}

Descriptor bound(const addrinfo& address) {
  Descriptor socket = socket_for(address);
  if (bind(socket.get(), address.ai_addr, address.ai_addrlen) == 0) return socket;
  if (errno != EADDRNOTAVAIL) fail<IoError>("cannot listen: {}", errno_text());
  sockaddr_storage any{.ss_family = static_cast<sa_family_t>(address.ai_family)};  // zeros are all addresses, any port
  if (bind(socket.get(), reinterpret_cast<const sockaddr*>(&any), address.ai_addrlen) != 0)
    fail<IoError>("cannot listen: {}", errno_text());
  return socket;
}

}  // namespace

Spot Spot::of(const std::string& text) {
  const size_t space = text.find(' ');
  if (space == std::string::npos) fail<Corruption>("'{}' is not where a rank listens", text);
  return {text.substr(0, space), text.substr(space + 1)};
}

Listener listen_at(const std::string& address) {
  const std::string host = address.empty() ? own_name() : address;
  const Addresses list = look_up(host, "0", 0);
  Listener listener{bound(*list), spot_of(list->ai_addr, list->ai_addrlen)};
  constexpr int kWaiting = 1024;
  sockaddr_storage own{};
  socklen_t size = sizeof own;
  if (listen(listener.socket.get(), kWaiting) != 0 ||
      getsockname(listener.socket.get(), reinterpret_cast<sockaddr*>(&own), &size) != 0)
    fail<IoError>("cannot listen at {}: {}", host, errno_text());
  listener.spot.port = spot_of(reinterpret_cast<const sockaddr*>(&own), size).port;
  return listener;
}

std::optional<Visitor> accept_one(const Descriptor& listener) {
  sockaddr_storage theirs{};
  socklen_t size = sizeof theirs;
  Descriptor socket(accept4(listener.get(), reinterpret_cast<sockaddr*>(&theirs), &size, SOCK_NONBLOCK | SOCK_CLOEXEC));
  if (!socket) return std::nullopt;
  send_at_once(socket);
  return Visitor{std::move(socket), spot_of(reinterpret_cast<const sockaddr*>(&theirs), size).address};
}

Descriptor start_connecting(const Spot& to) {
  const Addresses list = look_up(to.address, to.port, AI_NUMERICHOST | AI_NUMERICSERV);
  Descriptor socket = socket_for(*list);
  send_at_once(socket);
  if (connect(socket.get(), list->ai_addr, list->ai_addrlen) != 0 && errno != EINPROGRESS)
    fail<IoError>("{}", errno_text());
  return socket;
}

int connecting_fault(const Descriptor& socket) {
  int error = 0;
  socklen_t size = sizeof error;
  return getsockopt(socket.get(), SOL_SOCKET, SO_ERROR, &error, &size) == 0 ? error : errno;
}

}  // namespace trireme::comm::stream
