#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <fstream>

#include <trireme/base/error.h>
#include <trireme/base/unix_socket.h>
#include <trireme/ps/control.h>
#include <trireme/ps/shm/memory.h>

namespace trireme::ps {
namespace {

std::string door_of(const Found& server) { return own_name(fmt::format("ps/{}/{}", server.job, server.server)); }

}  // namespace

std::vector<Found> find_servers() {
  const std::string prefix = fmt::format("@{}", own_name("ps/"));
  std::vector<Found> found;
  std::ifstream sockets("/proc/net/unix");
  for (std::string line; std::getline(sockets, line);) {
    const size_t at = line.find(prefix);
    if (at == std::string::npos) continue;
    const std::string rest = line.substr(at + prefix.size());  // JOB/SERVER
    const size_t slash = rest.find('/');
    Found server;
    const auto [end, error] =
        std::from_chars(rest.data() + std::min(rest.size(), slash + 1), rest.data() + rest.size(), server.server);
    if (slash == std::string::npos || error != std::errc{}) continue;
    server.job = rest.substr(0, slash);
    const auto same = [&](const Found& other) { return other.job == server.job && other.server == server.server; };
    if (std::none_of(found.begin(), found.end(), same))
      found.push_back(server);  // connections carry the name of their door too
  }
  std::sort(found.begin(), found.end(),
            [](const Found& a, const Found& b) { return std::pair(a.job, a.server) < std::pair(b.job, b.server); });
  return found;
}

std::string control(const Found& server, const std::string& words, Seconds timeout) {
  const Descriptor socket = open_unix_socket();
  if (!connect_to(socket.get(), door_of(server)))
    fail<PeerLost>("server {} of job {} is gone", server.server, server.job);
  limit_wait(socket.get(), timeout);
  const shm::Hello hello{.kind = shm::Visitor::control};
  shm::Welcome welcome;
  std::vector<Descriptor> none;
  std::array<char, 1 << 14> text{};
  const bool met = send_message(socket.get(), &hello, sizeof hello) &&
                   receive_message(socket.get(), &welcome, sizeof welcome, none) == sizeof welcome &&
                   welcome.magic == shm::kMagic && send_message(socket.get(), words.data(), words.size());
  const ssize_t got = met ? receive_message(socket.get(), text.data(), text.size(), none) : 0;
  if (got <= 0)
    fail<Timeout>("server {} of job {} has not answered within {:g} s: it is stopped, or of another version",
                  server.server, server.job, timeout.count());
  const std::string answer(text.data() + 1, static_cast<size_t>(got) - 1);
  if (text[0] != '+') throw InvalidArgument(answer);
  return answer;
}

}  // namespace trireme::ps
