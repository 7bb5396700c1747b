// What the wire allows: two processes and one TCP connection over loopback. A transfer is B bytes one way and one byte
// back. Usage: tcp_transfer OUT SIZE,SIZE,…   Writes {"bytes": B, "us": T} per size, the median transfer.
#include <arpa/inet.h>
#include <netinet/tcp.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <sstream>
#include <string>
#include <vector>

namespace {

void check(bool good, const char* what) {
  if (good) return;
  std::perror(what);
  std::exit(1);
}

void send_all(int socket, const char* data, size_t bytes) {
  for (size_t done = 0; done < bytes;) {
    const ssize_t sent = send(socket, data + done, bytes - done, MSG_NOSIGNAL);
    check(sent > 0, "send");
    done += static_cast<size_t>(sent);
  }
}

bool receive_all(int socket, char* data, size_t bytes) {
  for (size_t done = 0; done < bytes;) {
    const ssize_t got = recv(socket, data + done, bytes - done, 0);
    if (got <= 0) return false;
    done += static_cast<size_t>(got);
  }
  return true;
}

void receiver(int listener, const std::vector<size_t>& sizes, int rounds) {
  const int socket = accept(listener, nullptr, nullptr);
  check(socket >= 0, "accept");
  for (size_t bytes : sizes) {
    std::vector<char> room(bytes, 1);
    for (int i = 0; i < rounds; i++) {
      check(receive_all(socket, room.data(), bytes), "receive");
      send_all(socket, "x", 1);
    }
  }
}

double measure(int socket, size_t bytes, int rounds) {
  std::vector<char> data(bytes, 1);
  std::vector<double> times;
  for (int i = 0; i < rounds; i++) {
    const auto start = std::chrono::steady_clock::now();
    send_all(socket, data.data(), bytes);
    char answer = 0;
    check(receive_all(socket, &answer, 1), "receive");
    times.push_back(std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now() - start).count());
  }
  std::nth_element(times.begin(), times.begin() + rounds / 2, times.end());
  return times[static_cast<size_t>(rounds / 2)];
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 3) return std::fprintf(stderr, "usage: tcp_transfer OUT SIZE,SIZE,…\n"), 2;
  constexpr int kRounds = 41;
  std::vector<size_t> sizes;
  std::stringstream list(argv[2]);
  for (std::string word; std::getline(list, word, ',');) sizes.push_back(std::stoul(word));
  const int listener = socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t length = sizeof address;
  check(bind(listener, reinterpret_cast<sockaddr*>(&address), length) == 0 && listen(listener, 1) == 0, "listen");
  getsockname(listener, reinterpret_cast<sockaddr*>(&address), &length);
  const pid_t child = fork();
  check(child >= 0, "fork");
  if (child == 0) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    receiver(listener, sizes, kRounds);
    _exit(0);
  }
  const int connection = socket(AF_INET, SOCK_STREAM, 0);
  check(connect(connection, reinterpret_cast<sockaddr*>(&address), length) == 0, "connect");
  const int on = 1;
  setsockopt(connection, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
  FILE* out = std::fopen(argv[1], "w");
  check(out != nullptr, argv[1]);
  for (size_t bytes : sizes)
    std::fprintf(out, "{\"bytes\": %zu, \"us\": %.3f}\n", bytes, measure(connection, bytes, kRounds));
  return std::fclose(out);
}
