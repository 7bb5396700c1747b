#include <fmt/ranges.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <thread>
#include <vector>

#include <trireme/base/error.h>
#include <trireme/base/unix_socket.h>
#include <trireme/comm/shm/rendezvous.h>
#include <trireme/comm/shm/rounds.h>
#include <trireme/space/layout.h>

namespace trireme::comm::shm {
namespace {

constexpr uint64_t kMagic = 0x3230656d65726974;  // "tireme02", the protocol's version included

struct Hello {
  uint64_t magic;
  int32_t rank, ranks;
};

struct Answer {
  uint64_t magic;
  uint64_t offset;  // of the group's control block
  int32_t welcome;
  char text[252];
};

std::string meeting_point(const std::string& job) { return own_name(fmt::format("{:016x}", space::hash_text(job))); }

void answer(int connection, const std::string& refusal, const Spot& spot) {
  Answer message{kMagic, spot.offset, refusal.empty(), {}};
  std::strncpy(message.text, refusal.c_str(), sizeof message.text - 1);
  // A peer that is gone shows up as missing.
  refusal.empty() ? send_message(connection, &message, sizeof message, {spot.segment->descriptor()})
                  : send_message(connection, &message, sizeof message);
}

/// Room for a group's control block, in the caller's segment or a new one.
Spot open_spot(std::shared_ptr<Segment> segment, int ranks) {
  if (!segment) segment = Segment::create();
  const size_t offset = Areas(*segment).claim(Rounds::bytes(ranks), "the ranks' control block");
  return {std::move(segment), offset};
}

constexpr Seconds kOwnFirst{2};  // in which a rank looks for the rank 0 of its own origin alone
constexpr const char* kTwoJobs =
    "Have two jobs been started with one name (TRIREME_JOB) or MASTER_PORT? Give each its own";

/// Where ranks look for rank 0, the best first.
std::vector<std::string> meeting_points(const std::string& job, const std::string& origin) {
  if (origin.empty()) return {meeting_point(job)};
  return {meeting_point(fmt::format("{}/from {}", job, origin)), meeting_point(job)};
}

std::string objection(const Hello& hello, int ranks, const std::vector<bool>& seen) {
  if (hello.ranks != ranks)
    return fmt::format("rank {} was told that there are {} ranks, rank 0 that there are {}", hello.rank, hello.ranks,
                       ranks);
  if (hello.rank < 0 || hello.rank >= ranks)
    return fmt::format("there is no rank {} among {} ranks", hello.rank, ranks);
  if (hello.rank == 0 || seen[static_cast<size_t>(hello.rank)])
    return fmt::format("two processes claim to be rank {}. {}", hello.rank, kTwoJobs);
  return "";
}

/// That rank 0 has other ranks to meet: it cannot know whose they are.
void tell_other_host(const std::string& point, int ranks) {
  const Descriptor socket = open_unix_socket();
  if (!connect_to(socket.get(), point)) return;
  const Hello hello{kMagic, 0, ranks};
  [[maybe_unused]] const auto sent = send(socket.get(), &hello, sizeof hello, MSG_NOSIGNAL);
}

/// Rank 0's listeners. With an origin the first is its own; the second may be another job's.
std::vector<Descriptor> open_meeting(const std::string& job, int ranks, const std::string& origin) {
  std::vector<Descriptor> listeners;
  for (const std::string& point : meeting_points(job, origin)) {
    listeners.push_back(open_unix_socket());
    if (listen_at(listeners.back().get(), point, ranks)) continue;
    if (listeners.size() == 2) {
      listeners.pop_back();
      break;
    }
    tell_other_host(point, ranks);
    fail<Mismatch>("cannot open the meeting point of job '{}': another process is its rank 0. {}", job, kTwoJobs);
  }
  return listeners;
}

/// Who comes next; nothing when that takes longer than a minute or the time that is left.
Descriptor next_visitor(const std::vector<Descriptor>& listeners, const Deadline& deadline) {
  std::vector<pollfd> waiting;
  for (const Descriptor& listener : listeners) waiting.push_back({listener.get(), POLLIN, 0});
  if (poll(waiting.data(), waiting.size(),
           static_cast<int>(std::min(deadline.left(), Seconds(60)).count() * 1e3) + 1) <= 0)
    return {};
  const auto ready =
      std::find_if(waiting.begin(), waiting.end(), [](const pollfd& listener) { return listener.revents != 0; });
  return accept_from(ready->fd);
}

Spot host(const std::string& job, int ranks, const Deadline& deadline, const std::string& origin,
          std::shared_ptr<Segment> own) {
  const std::vector<Descriptor> listeners = open_meeting(job, ranks, origin);
  Spot spot = open_spot(std::move(own), ranks);
  std::vector<bool> seen(static_cast<size_t>(ranks), false);
  for (int missing = ranks - 1; missing > 0;) {
    if (deadline.passed()) {  // whoever else knocks meanwhile
      std::vector<int> absent;
      for (int r = 1; r < ranks; r++)
        if (!seen[static_cast<size_t>(r)]) absent.push_back(r);
      fail<Timeout>("rank {} did not come to job '{}' within {:.3g} s. Were all {} ranks started, on this machine?",
                    fmt::join(absent, ", "), job, deadline.limit().count(), ranks);
    }
    const Descriptor connection = next_visitor(listeners, deadline);
    if (!connection || !same_user(connection.get())) continue;
    limit_wait(connection.get(), Seconds(1));
    Hello hello{};
    if (recv(connection.get(), &hello, sizeof hello, 0) != sizeof hello || hello.magic != kMagic) continue;
    const std::string refusal = objection(hello, ranks, seen);
    answer(connection.get(), refusal, spot);
    if (!refusal.empty()) fail<Mismatch>("{}", refusal);
    seen[static_cast<size_t>(hello.rank)] = true;
    missing--;
  }
  return spot;
}

Descriptor connect_to_host(const std::string& job, int rank, const Deadline& deadline, const std::string& origin) {
  const std::vector<std::string> points = meeting_points(job, origin);
  const Deadline own(std::min(kOwnFirst, deadline.limit()));
  for (auto pause = std::chrono::milliseconds(1);; pause = std::min(pause * 2, std::chrono::milliseconds(20))) {
    for (size_t i = 0; i < (own.passed() ? points.size() : 1); i++) {
      Descriptor socket = open_unix_socket();
      if (connect_to(socket.get(), points[i])) return socket;
    }
    if (deadline.passed())
      fail<Timeout>("rank {} found no rank 0 of job '{}' on this machine within {:.3g} s", rank, job,
                    deadline.limit().count());
    std::this_thread::sleep_for(pause);  // nothing signals the birth of an abstract socket
  }
}

Spot visit(const std::string& job, int rank, int ranks, const Deadline& deadline, const std::string& origin,
           std::shared_ptr<Segment> own) {
  const Descriptor socket = connect_to_host(job, rank, deadline, origin);
  if (!same_user(socket.get())) fail<IoError>("the meeting point of job '{}' belongs to another user", job);
  limit_wait(socket.get(), deadline.left() + Seconds(1));
  const Hello hello{kMagic, rank, ranks};
  if (send(socket.get(), &hello, sizeof hello, MSG_NOSIGNAL) != sizeof hello)
    fail<PeerLost>("rank 0 went away while rank {} joined", rank);

  Answer message{};
  std::vector<Descriptor> descriptors;
  if (receive_message(socket.get(), &message, sizeof message, descriptors) != sizeof message || message.magic != kMagic)
    fail<PeerLost>("rank 0 went away or speaks another version of the protocol while rank {} joined", rank);
  if (message.welcome == 0) fail<Mismatch>("{}", message.text);
  if (descriptors.empty()) fail<IoError>("rank 0 sent no shared memory");
  if (!own || !own->is(descriptors[0].get())) own = std::make_shared<Segment>(std::move(descriptors[0]));
  return {std::move(own), message.offset};
}

}  // namespace

Spot meet(const std::string& job, int rank, int ranks, Seconds timeout, const std::string& origin,
          std::shared_ptr<Segment> own) {
  if (ranks == 1) return open_spot(std::move(own), 1);
  const Deadline deadline(timeout);
  return rank == 0 ? host(job, ranks, deadline, origin, std::move(own))
                   : visit(job, rank, ranks, deadline, origin, std::move(own));
}

Beacon::Beacon(const std::string& job, int rank) : socket_(open_unix_socket()) {
  if (!listen_at(socket_.get(), meeting_point(fmt::format("{}/rank {}", job, rank)), 4096))
    fail<Mismatch>("cannot claim rank {} of job '{}' on this machine: {}. Does another process have the same rank?",
                   rank, job, errno_text());
}

bool Beacon::seen(const std::string& job, int rank) {
  const Descriptor socket = open_unix_socket();
  limit_wait(socket.get(), Seconds(1));
  return connect_to(socket.get(), meeting_point(fmt::format("{}/rank {}", job, rank))) && same_user(socket.get());
}

}  // namespace trireme::comm::shm
