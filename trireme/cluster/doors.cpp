#include <fmt/format.h>
#include <poll.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <charconv>
#include <fstream>
#include <map>
#include <random>

#include <trireme/base/error.h>
#include <trireme/base/unix_socket.h>
#include <trireme/cluster/doors.h>

namespace trireme::cluster {
namespace {

constexpr int kBeforeTheDoor = 16;      // visitors
constexpr Seconds kForVisitor{1};       // to read its answer
constexpr int kUntilThereIsRoom = 200;  // milliseconds

/// Nothing: it is gone, or this process has no descriptor left. Then it waits a while, or until `stop`: the visitor
/// stays at the door, so that poll() would not.
Descriptor try_to_accept(const Descriptor& listener, const Descriptor& stop) try {
  return accept_from(listener.get());
} catch (const IoError&) {
  pollfd only{stop.get(), POLLIN, 0};
  poll(&only, 1, kUntilThereIsRoom);
  return {};
}

}  // namespace

std::vector<Door> doors_of(const char* kind) {
  const std::string prefix = own_name(kind);
  std::map<std::string, int> found;
  std::ifstream sockets("/proc/net/unix");
  for (std::string line; std::getline(sockets, line);) {
    const size_t at = line.find("@" + prefix);
    if (at == std::string::npos) continue;
    const std::string name = line.substr(at + 1);
    int process = 0;
    std::from_chars(name.data() + prefix.size(), name.data() + name.size(), process);
    found[name] = process;  // connections carry the name of their door too
  }
  std::vector<Door> all;
  for (const auto& [name, process] : found) all.push_back({name, process});
  return all;
}

bool open_door(const Descriptor& listener, const char* kind) {
  std::random_device random;  // processes in containers may share a number
  return listen_at(listener.get(), own_name(fmt::format("{}{}/{:08x}", kind, getpid(), random())), kBeforeTheDoor);
}

Descriptor next_visitor(const Descriptor& listener, const Descriptor& stop) {
  while (true) {
    std::array<pollfd, 2> polls = {{{stop.get(), POLLIN, 0}, {listener.get(), POLLIN, 0}}};
    if (poll(polls.data(), polls.size(), -1) < 0 && errno != EINTR) return {};
    if (polls[0].revents != 0) return {};
    if (polls[1].revents == 0) continue;
    Descriptor visitor = try_to_accept(listener, stop);
    if (!visitor || !same_user(visitor.get())) continue;
    limit_wait(visitor.get(), kForVisitor);
    return visitor;
  }
}

}  // namespace trireme::cluster
