#include <trireme/comm/shm/rendezvous.h>

#include <fmt/ranges.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>

#include <trireme/base/error.h>
#include <trireme/space/layout.h>
#include <cerrno>
#include <cstring>
#include <thread>
#include <vector>

namespace trireme::comm::shm {
namespace {

constexpr uint64_t kMagic = 0x3130656d65726974;  // "tireme01", the protocol's version included

struct Hello {
  uint64_t magic;
  int32_t rank, ranks;
};

struct Answer {
  uint64_t magic;
  int32_t welcome;
  char text[180];
};

struct Address {
  sockaddr_un name{};
  socklen_t length = 0;

  explicit Address(const std::string& job) {
    const std::string text = fmt::format("trireme/{}/{:016x}", getuid(), space::hash_text(job));
    name.sun_family = AF_UNIX;
    std::memcpy(name.sun_path + 1, text.data(), text.size());  // a leading zero: abstract, no file
    length = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + text.size());
  }
  const sockaddr* get() const { return reinterpret_cast<const sockaddr*>(&name); }
};

Descriptor open_socket() {
  Descriptor socket_(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
  if (!socket_) fail<IoError>("cannot open a unix socket: {}", errno_text());
  return socket_;
}

void limit_wait(int socket, Seconds limit) {
  timeval time{static_cast<time_t>(limit.count()), 1000};
  setsockopt(socket, SOL_SOCKET, SO_RCVTIMEO, &time, sizeof time);
  setsockopt(socket, SOL_SOCKET, SO_SNDTIMEO, &time, sizeof time);
}

bool same_user(int connection) {
  ucred peer{};
  socklen_t size = sizeof peer;
  return getsockopt(connection, SOL_SOCKET, SO_PEERCRED, &peer, &size) == 0 && peer.uid == getuid();
}

void answer(int connection, const std::string& refusal, int descriptor) {
  Answer message{kMagic, refusal.empty(), {}};
  std::strncpy(message.text, refusal.c_str(), sizeof message.text - 1);
  iovec part{&message, sizeof message};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
  msghdr header{};
  header.msg_iov = &part;
  header.msg_iovlen = 1;
  if (refusal.empty()) {
    header.msg_control = control;
    header.msg_controllen = sizeof control;
    cmsghdr* item = CMSG_FIRSTHDR(&header);
    item->cmsg_level = SOL_SOCKET;
    item->cmsg_type = SCM_RIGHTS;
    item->cmsg_len = CMSG_LEN(sizeof(int));
    std::memcpy(CMSG_DATA(item), &descriptor, sizeof descriptor);
  }
  sendmsg(connection, &header, MSG_NOSIGNAL);  // a peer that is gone shows up as missing
}

std::string objection(const Hello& hello, int ranks, const std::vector<bool>& seen) {
  if (hello.ranks != ranks) return fmt::format("rank {} was told that there are {} ranks, rank 0 that there are {}", hello.rank, hello.ranks, ranks);
  if (hello.rank < 1 || hello.rank >= ranks) return fmt::format("there is no rank {} among {} ranks", hello.rank, ranks);
  if (seen[static_cast<size_t>(hello.rank)]) return fmt::format("two processes claim to be rank {}", hello.rank);
  return "";
}

std::shared_ptr<Segment> host(const std::string& job, int ranks, const Deadline& deadline) {
  const Address address(job);
  const Descriptor listener = open_socket();
  if (bind(listener.get(), address.get(), address.length) != 0)
    fail<IoError>("cannot open the meeting point of job '{}': {}. Is another job with the same name (or MASTER_PORT) running?", job, errno_text());
  if (listen(listener.get(), ranks) != 0) fail<IoError>("cannot listen for ranks: {}", errno_text());
  auto segment = Segment::create();
  std::vector<bool> seen(static_cast<size_t>(ranks), false);
  for (int missing = ranks - 1; missing > 0;) {
    pollfd waiting{listener.get(), POLLIN, 0};
    const bool come = poll(&waiting, 1, static_cast<int>(std::min(deadline.left(), Seconds(60)).count() * 1e3) + 1) > 0;
    if (!come && !deadline.passed()) continue;
    if (!come) {
      std::vector<int> absent;
      for (int r = 1; r < ranks; r++)
        if (!seen[static_cast<size_t>(r)]) absent.push_back(r);
      fail<Timeout>("rank {} did not come to job '{}' within {:.3g} s. Were all {} ranks started, on this machine?", fmt::join(absent, ", "), job,
                    deadline.limit().count(), ranks);
    }
    const Descriptor connection(accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC));
    if (!connection || !same_user(connection.get())) continue;
    limit_wait(connection.get(), Seconds(1));
    Hello hello{};
    if (recv(connection.get(), &hello, sizeof hello, 0) != sizeof hello || hello.magic != kMagic) continue;
    const std::string refusal = objection(hello, ranks, seen);
    answer(connection.get(), refusal, segment->descriptor());
    if (!refusal.empty()) fail<Mismatch>("{}", refusal);
    seen[static_cast<size_t>(hello.rank)] = true;
    missing--;
  }
  return segment;
}

Descriptor connect_to_host(const std::string& job, int rank, const Deadline& deadline) {
  const Address address(job);
  for (auto pause = std::chrono::milliseconds(1);; pause = std::min(pause * 2, std::chrono::milliseconds(20))) {
    Descriptor socket = open_socket();
    if (connect(socket.get(), address.get(), address.length) == 0) return socket;
    if (deadline.passed()) fail<Timeout>("rank {} found no rank 0 of job '{}' on this machine within {:.3g} s", rank, job, deadline.limit().count());
    std::this_thread::sleep_for(pause);  // nothing signals the birth of an abstract socket
  }
}

std::shared_ptr<Segment> visit(const std::string& job, int rank, int ranks, const Deadline& deadline) {
  const Descriptor socket = connect_to_host(job, rank, deadline);
  if (!same_user(socket.get())) fail<IoError>("the meeting point of job '{}' belongs to another user", job);
  limit_wait(socket.get(), deadline.left() + Seconds(1));
  const Hello hello{kMagic, rank, ranks};
  if (send(socket.get(), &hello, sizeof hello, MSG_NOSIGNAL) != sizeof hello) fail<PeerLost>("rank 0 went away while rank {} joined", rank);

  Answer message{};
  iovec part{&message, sizeof message};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
  msghdr header{};
  header.msg_iov = &part;
  header.msg_iovlen = 1;
  header.msg_control = control;
  header.msg_controllen = sizeof control;
  if (recvmsg(socket.get(), &header, MSG_CMSG_CLOEXEC) != sizeof message || message.magic != kMagic)
    fail<PeerLost>("rank 0 went away or speaks another version of the protocol while rank {} joined", rank);
  if (message.welcome == 0) fail<Mismatch>("{}", message.text);
  const cmsghdr* item = CMSG_FIRSTHDR(&header);
  if (item == nullptr || item->cmsg_type != SCM_RIGHTS) fail<IoError>("rank 0 sent no shared memory");
  int descriptor = -1;
  std::memcpy(&descriptor, CMSG_DATA(item), sizeof descriptor);
  return std::make_shared<Segment>(Descriptor(descriptor));
}

}  // namespace

std::shared_ptr<Segment> meet(const std::string& job, int rank, int ranks, Seconds timeout) {
  if (ranks == 1) return Segment::create();
  const Deadline deadline(timeout);
  return rank == 0 ? host(job, ranks, deadline) : visit(job, rank, ranks, deadline);
}

Beacon::Beacon(const std::string& job, int rank) : socket_(open_socket()) {
  const Address address(fmt::format("{}/rank {}", job, rank));
  if (bind(socket_.get(), address.get(), address.length) != 0)
    fail<Mismatch>("cannot claim rank {} of job '{}' on this machine: {}. Does another process have the same rank?", rank, job, errno_text());
  if (listen(socket_.get(), 4096) != 0) fail<IoError>("cannot listen for ranks: {}", errno_text());
}

bool Beacon::seen(const std::string& job, int rank) {
  const Address address(fmt::format("{}/rank {}", job, rank));
  const Descriptor socket = open_socket();
  limit_wait(socket.get(), Seconds(1));
  return connect(socket.get(), address.get(), address.length) == 0 && same_user(socket.get());
}

}  // namespace trireme::comm::shm
