#include <trireme/comm/shm/rendezvous.h>

#include <fmt/ranges.h>
#include <poll.h>
#include <sys/socket.h>

#include <trireme/base/error.h>
#include <trireme/base/unix_socket.h>
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

std::string meeting_point(const std::string& job) { return own_name(fmt::format("{:016x}", space::hash_text(job))); }

void answer(int connection, const std::string& refusal, int descriptor) {
  Answer message{kMagic, refusal.empty(), {}};
  std::strncpy(message.text, refusal.c_str(), sizeof message.text - 1);
  // A peer that is gone shows up as missing.
  refusal.empty() ? send_message(connection, &message, sizeof message, {descriptor}) : send_message(connection, &message, sizeof message);
}

std::string objection(const Hello& hello, int ranks, const std::vector<bool>& seen) {
  if (hello.ranks != ranks) return fmt::format("rank {} was told that there are {} ranks, rank 0 that there are {}", hello.rank, hello.ranks, ranks);
  if (hello.rank < 1 || hello.rank >= ranks) return fmt::format("there is no rank {} among {} ranks", hello.rank, ranks);
  if (seen[static_cast<size_t>(hello.rank)]) return fmt::format("two processes claim to be rank {}", hello.rank);
  return "";
}

std::shared_ptr<Segment> host(const std::string& job, int ranks, const Deadline& deadline) {
  const Descriptor listener = open_unix_socket();
  if (!listen_at(listener.get(), meeting_point(job), ranks))
    fail<IoError>("cannot open the meeting point of job '{}': {}. Is another job with the same name (or MASTER_PORT) running?", job, errno_text());
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
  for (auto pause = std::chrono::milliseconds(1);; pause = std::min(pause * 2, std::chrono::milliseconds(20))) {
    Descriptor socket = open_unix_socket();
    if (connect_to(socket.get(), meeting_point(job))) return socket;
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
  std::vector<Descriptor> descriptors;
  if (receive_message(socket.get(), &message, sizeof message, descriptors) != sizeof message || message.magic != kMagic)
    fail<PeerLost>("rank 0 went away or speaks another version of the protocol while rank {} joined", rank);
  if (message.welcome == 0) fail<Mismatch>("{}", message.text);
  if (descriptors.empty()) fail<IoError>("rank 0 sent no shared memory");
  return std::make_shared<Segment>(std::move(descriptors[0]));
}

}  // namespace

std::shared_ptr<Segment> meet(const std::string& job, int rank, int ranks, Seconds timeout) {
  if (ranks == 1) return Segment::create();
  const Deadline deadline(timeout);
  return rank == 0 ? host(job, ranks, deadline) : visit(job, rank, ranks, deadline);
}

Beacon::Beacon(const std::string& job, int rank) : socket_(open_unix_socket()) {
  if (!listen_at(socket_.get(), meeting_point(fmt::format("{}/rank {}", job, rank)), 4096))
    fail<Mismatch>("cannot claim rank {} of job '{}' on this machine: {}. Does another process have the same rank?", rank, job, errno_text());
}

bool Beacon::seen(const std::string& job, int rank) {
  const Descriptor socket = open_unix_socket();
  limit_wait(socket.get(), Seconds(1));
  return connect_to(socket.get(), meeting_point(fmt::format("{}/rank {}", job, rank))) && same_user(socket.get());
}

}  // namespace trireme::comm::shm
