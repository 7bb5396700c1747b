#include <fmt/ranges.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <optional>
#include <thread>

#include <trireme/base/areas.h>
#include <trireme/base/error.h>
#include <trireme/base/unix_socket.h>
#include <trireme/cluster/muster.h>
#include <trireme/comm/shm/rounds.h>
#include <trireme/space/layout.h>

namespace trireme::cluster {
namespace {

constexpr uint64_t kMagic = 0x32307265747375;  // "uster02", the version included
constexpr Seconds kBetweenLooks{0.05};         // at those whose end no descriptor shows

struct Arrival {
  uint64_t magic, epoch;
  int64_t rank;
};

/// What the leader says; the ranks of the crew, `count` of int32_t, follow.
struct Answer {
  uint64_t magic, epoch, control, count;
};

/// Of an answer about so many ranks.
size_t answer_bytes(size_t ranks) { return sizeof(Answer) + ranks * sizeof(int32_t); }

std::string point_of(const Facts& facts, int leader) {
  return own_name(fmt::format("{:016x}", space::hash_text(fmt::format("{}/muster of rank {}", facts.job, leader))));
}

int milliseconds(Seconds time) { return static_cast<int>(time.count() * 1e3) + 1; }

class Leader {
 public:
  Leader(const Facts& facts, const Crew& before, const LookAt& look)
      : facts_(facts), before_(before), look_(look), epoch_(before.epoch), door_(open_unix_socket()) {
    if (!listen_at(door_.get(), point_of(facts, facts.rank), static_cast<int>(before.ranks.size())))
      fail<Mismatch>("rank {} of job '{}' cannot call the crew together: {}. Does another process have the same rank?",
                     facts.rank, facts.job, errno_text());
  }

  Mustered run(const Deadline& deadline) {
    for (std::vector<int> missing = absent(); !missing.empty(); missing = absent()) {
      if (deadline.passed())
        fail<Timeout>("rank {} did not come to the crew after epoch {} within {:.3g} s; rank {} waited for it",
                      fmt::join(missing, ", "), before_.epoch, deadline.limit().count(), facts_.rank);
      wait(missing, deadline);
    }
    Mustered result{{epoch_ + 1, {facts_.rank}}, 0};
    for (const auto& [rank, connection] : come_) result.crew.ranks.push_back(rank);
    std::sort(result.crew.ranks.begin(), result.crew.ranks.end());
    result.control =
        Areas(*facts_.segment)
            .claim(comm::shm::Rounds::bytes(static_cast<int>(result.crew.ranks.size())), "the crew's control block");
    tell(result);
    return result;
  }

 private:
  /// Who lives and has not come. Forgets those who came and went.
  std::vector<int> absent() {
    std::erase_if(come_, [&](const auto& one) { return !look_(one.first).alive || hung_up(one.second.get()); });
    std::vector<int> result;
    for (int rank : before_.ranks)
      if (rank != facts_.rank && !come_.contains(rank) && look_(rank).alive) result.push_back(rank);
    return result;
  }

  static bool hung_up(int connection) {
    pollfd look{connection, POLLRDHUP, 0};
    return poll(&look, 1, 0) > 0 && (look.revents & (POLLHUP | POLLRDHUP | POLLERR)) != 0;
  }

  void wait(const std::vector<int>& missing, const Deadline& deadline) {
    std::vector<pollfd> polls = {{door_.get(), POLLIN, 0}};
    bool blind = false;
    for (int rank : missing) {
      polls.push_back({look_(rank).process, POLLIN, 0});
      blind = blind || polls.back().fd < 0;
    }
    for (const auto& [rank, connection] : come_) polls.push_back({connection.get(), POLLRDHUP, 0});
    const Seconds limit = blind ? std::min(kBetweenLooks, deadline.left()) : deadline.left();
    if (poll(polls.data(), polls.size(), milliseconds(limit)) <= 0 || polls[0].revents == 0) return;
    Descriptor connection = accept_from(door_.get());
    if (!connection || !same_user(connection.get())) return;
    limit_wait(connection.get(), Seconds(1));
    Arrival arrival{};
    if (recv(connection.get(), &arrival, sizeof arrival, 0) != sizeof arrival || arrival.magic != kMagic) return;
    const int rank = static_cast<int>(arrival.rank);
    if (std::find(before_.ranks.begin(), before_.ranks.end(), rank) == before_.ranks.end()) return;
    epoch_ = std::max(epoch_, arrival.epoch);
    come_.insert_or_assign(rank, std::move(connection));
  }

  void tell(const Mustered& result) {
    const std::vector<int32_t> ranks(result.crew.ranks.begin(), result.crew.ranks.end());
    const Answer answer{kMagic, result.crew.epoch, result.control, ranks.size()};
    std::vector<std::byte> message(answer_bytes(ranks.size()));
    std::memcpy(message.data(), &answer, sizeof answer);
    std::memcpy(message.data() + sizeof answer, ranks.data(), ranks.size() * sizeof(int32_t));
    for (const auto& [rank, connection] : come_) send_message(connection.get(), message.data(), message.size());
  }

  const Facts& facts_;
  const Crew& before_;
  const LookAt& look_;
  uint64_t epoch_;
  const Descriptor door_;
  std::map<int, Descriptor> come_;  // by rank
};

/// Nothing when the leader has died, or has gone without an answer.
std::optional<Mustered> follow(const Facts& facts, const Crew& before, const LookAt& look, int leader,
                               const Deadline& deadline) {
  const Descriptor socket = open_unix_socket();
  for (auto pause = std::chrono::microseconds(100); !connect_to(socket.get(), point_of(facts, leader));
       pause = std::min(pause * 2, std::chrono::microseconds(10'000))) {
    if (!look(leader).alive) return std::nullopt;
    if (deadline.passed())
      fail<Timeout>("rank {} lives, but did not call the crew together after epoch {} within {:.3g} s; rank {} waited",
                    leader, before.epoch, deadline.limit().count(), facts.rank);
    std::this_thread::sleep_for(pause);  // nothing signals the birth of an abstract socket
  }
  if (!same_user(socket.get())) fail<IoError>("the meeting point of rank {} belongs to another user", leader);
  limit_wait(socket.get(), deadline.left() + Seconds(1));
  const Arrival arrival{kMagic, before.epoch, facts.rank};
  if (!send_message(socket.get(), &arrival, sizeof arrival)) return std::nullopt;
  std::vector<std::byte> message(answer_bytes(before.ranks.size()));
  std::vector<Descriptor> none;
  const ssize_t got = receive_message(socket.get(), message.data(), message.size(), none);
  if (got < 0 && deadline.passed())
    fail<Timeout>("rank {} has not told who is in the crew after epoch {} within {:.3g} s; rank {} waited", leader,
                  before.epoch, deadline.limit().count(), facts.rank);
  Answer answer{};
  if (got < static_cast<ssize_t>(sizeof answer)) return std::nullopt;
  std::memcpy(&answer, message.data(), sizeof answer);
  if (answer.magic != kMagic || answer.count > before.ranks.size() ||
      static_cast<size_t>(got) != answer_bytes(answer.count))
    return std::nullopt;
  std::vector<int32_t> ranks(answer.count);
  std::memcpy(ranks.data(), message.data() + sizeof answer, ranks.size() * sizeof(int32_t));
  return Mustered{{answer.epoch, {ranks.begin(), ranks.end()}}, answer.control};
}

}  // namespace

Mustered muster(const Facts& facts, const Crew& before, const LookAt& look) {
  const Deadline deadline(facts.timeout);
  while (true) {
    int leader = facts.rank;
    for (int rank : before.ranks)
      if (rank < leader && look(rank).alive) leader = rank;
    if (leader == facts.rank) return Leader(facts, before, look).run(deadline);
    if (auto result = follow(facts, before, look, leader, deadline)) return *result;
    if (deadline.passed())
      fail<Timeout>("rank {} found nobody to make a crew with after epoch {} within {:.3g} s", facts.rank, before.epoch,
                    deadline.limit().count());
  }
}

}  // namespace trireme::cluster
