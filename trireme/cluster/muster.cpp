#include <fmt/ranges.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
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

constexpr uint64_t kMagic = 0x31307265747375;  // "uster01"
constexpr size_t kMostRanks = 256;
constexpr Seconds kBetweenLooks{0.05};  // at those whose end no descriptor shows

struct Arrival {
  uint64_t magic, epoch;
  int64_t rank;
};

struct Answer {
  uint64_t magic, epoch, control, count;
  std::array<int32_t, kMostRanks> ranks;
};

std::string point_of(const Facts& facts, int leader) {
  return own_name(fmt::format("{:016x}", space::hash_text(fmt::format("{}/muster of rank {}", facts.job, leader))));
}

int milliseconds(Seconds time) { return static_cast<int>(time.count() * 1e3) + 1; }

class Leader {
 public:
  Leader(const Facts& facts, const Crew& before, const LookAt& look)
      : facts_(facts), before_(before), look_(look), epoch_(before.epoch), door_(open_unix_socket()) {
    if (!listen_at(door_.get(), point_of(facts, facts.rank), static_cast<int>(kMostRanks)))
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
    Descriptor connection(accept4(door_.get(), nullptr, nullptr, SOCK_CLOEXEC));
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
    Answer answer{kMagic, result.crew.epoch, result.control, result.crew.ranks.size(), {}};
    std::copy(result.crew.ranks.begin(), result.crew.ranks.end(), answer.ranks.begin());
    for (const auto& [rank, connection] : come_) send_message(connection.get(), &answer, sizeof answer);
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
  Answer answer{};
  std::vector<Descriptor> none;
  const ssize_t got = receive_message(socket.get(), &answer, sizeof answer, none);
  if (got < 0 && deadline.passed())
    fail<Timeout>("rank {} has not told who is in the crew after epoch {} within {:.3g} s; rank {} waited", leader,
                  before.epoch, deadline.limit().count(), facts.rank);
  if (got != sizeof answer || answer.magic != kMagic || answer.count > kMostRanks) return std::nullopt;
  return Mustered{{answer.epoch, {answer.ranks.begin(), answer.ranks.begin() + static_cast<ptrdiff_t>(answer.count)}},
                  answer.control};
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
