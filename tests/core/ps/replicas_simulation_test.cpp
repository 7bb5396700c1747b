// label: unit
// Many short lives of a job with replicas: servers die and come back at any moment, every member hears of it when it
// does, requests are lost and doubled. Who decides are the functions that decide in earnest (placement.h,
// consistency.h, SeenIds); only memory, sockets and time are played.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <random>
#include <set>

#include <trireme/ps/placement.h>
#include <trireme/ps/service.h>

namespace trireme::ps::tests {
namespace {

constexpr int kMostActions = 20000;  // of one history: it would not end

struct Ask {
  enum Kind { begin, push, leave } kind = push;
  int worker = 0;
  uint64_t id = 0;
  int64_t step = 0;
};
struct Told {
  int worker;
  uint64_t id;
};

/// What a server knows of a shard: the same on primary and backup where the same was carried out.
struct Store {
  explicit Store(int workers) : seen(static_cast<size_t>(workers)), clocks(static_cast<size_t>(workers)) {}

  std::vector<Told> carry_out(const Ask& ask, const Rules& rules) {
    std::vector<Told> told;
    auto& clock = clocks[static_cast<size_t>(ask.worker)];
    if (ask.kind == Ask::push) {
      if (seen[static_cast<size_t>(ask.worker)].add(ask.id)) order.emplace_back(ask.worker, ask.step);
      told.push_back({ask.worker, ask.id});
    } else if (ask.kind == Ask::begin) {
      if (clock != kGone) clock = ask.step;
      std::erase_if(beginning, [&](const Ask& one) { return one.worker == ask.worker; });
      beginning.push_back(ask);
    } else {
      clock = kGone;
      told.push_back({ask.worker, ask.id});
    }
    for (size_t i = 0; i < beginning.size();) {
      const Ask& one = beginning[i];
      if (judge_begin(rules, clocks, one.worker, one.step).verdict != Verdict::apply) {
        i++;
        continue;
      }
      told.push_back({one.worker, one.id});
      beginning.erase(beginning.begin() + static_cast<ptrdiff_t>(i));
    }
    return told;
  }

  std::vector<SeenIds> seen;
  std::vector<int64_t> clocks;
  std::vector<Ask> beginning;
  std::vector<std::pair<int, int64_t>> order;  // updates, as they were applied
};

struct Entry {
  uint64_t order = 0;
  std::optional<Ask> ask;
  std::shared_ptr<Store> copy;  // of all before
  bool filled = false;
};
/// Memory of two servers: it outlives either.
struct Log {
  int primary = 0, backup = 0;  // lives of servers, not numbers
  std::deque<Entry> entries;
  uint64_t applied = 0;
  bool dropped = false;
};

struct Held {
  uint64_t order;
  Told told;
};
/// A server's part in a shard.
struct Part {
  Charge charge;
  Store store;
  std::shared_ptr<Log> writes, reads;
  uint64_t order = 0;
  std::deque<Held> held;
};
struct Life {
  int number = 0;
  bool lives = true;
  std::map<int, Part> parts;
};

struct Line {
  int life = -1, backup = kNobody;
  uint64_t epoch = 0;
  std::deque<Ask> requests;
  std::deque<uint64_t> answers;
  std::map<uint64_t, Ask> open;
  uint64_t next_id = 1;
};
struct Worker {
  int64_t step = 0;
  enum { wants_step, begins, pushes, leaves, done } doing = wants_step;
  std::vector<Line> lines;
};

class History {
 public:
  explicit History(uint64_t seed)
      : random_(seed),
        servers_(2 + static_cast<int>(below(3))),
        workers_(1 + static_cast<int>(below(3))),
        steps_(1 + static_cast<int64_t>(below(5))),
        deaths_(below(5)) {
    rules_ = {.workers = workers_, .order = Order::on_arrival, .bound = static_cast<int64_t>(below(3))};
    for (int server = 0; server < servers_; server++) lives_.push_back({.number = server});
    for (const Charge& charge : place(servers_, 1)) {
      const auto log = std::make_shared<Log>(Log{charge.primary, charge.backup});
      at(charge.primary).parts.emplace(charge.shard, Part{charge, Store(workers_), log, nullptr});
      at(charge.backup).parts.emplace(charge.shard, Part{charge, Store(workers_), nullptr, log});
    }
    for (int worker = 0; worker < workers_; worker++) {
      all_.emplace_back();
      for (int shard = 0; shard < servers_; shard++)
        all_.back().lines.push_back({.life = shard, .backup = (shard + 1) % servers_, .epoch = 1});
    }
  }

  /// "" or what is wrong.
  std::string run() {
    for (int action = 0; action < kMostActions; action++) {
      if (!fault_.empty() || lost_) return fault_;
      if (std::all_of(all_.begin(), all_.end(), [](const Worker& one) { return one.doing == Worker::done; }))
        return check_end();
      act();
    }
    return "it does not end";
  }
  bool lost() const { return lost_; }
  int promotions() const { return promotions_; }
  int refills() const { return refills_; }

 private:
  size_t below(size_t end) { return random_() % end; }
  Life& at(int life) { return lives_[static_cast<size_t>(life)]; }
  int life_of(int number) {  // the one that has the number's door; -1: nobody
    for (int life = static_cast<int>(lives_.size()) - 1; life >= 0; life--)
      if (at(life).number == number) return at(life).lives ? life : -1;
    return -1;
  }
  std::vector<bool> living(int but) {
    std::vector<bool> lives;
    for (int number = 0; number < servers_; number++) lives.push_back(number != but && life_of(number) >= 0);
    return lives;
  }

  void act() {
    switch (below(16)) {
      case 0:
        if (deaths_ > 0 && below(8) == 0) kill();
        return;
      case 1:
        return come_back();
      case 2:
      case 3:
        return notice();
      case 4:
      case 5:
      case 6:
        return serve();
      case 7:
      case 8:
        return follow();
      case 9:
      case 10:
        return answer();
      case 11:
        return look_for_backup();
      default:
        return work();
    }
  }

  void kill() {
    const int life = life_of(static_cast<int>(below(static_cast<size_t>(servers_))));
    if (life < 0) return;
    at(life).lives = false;
    deaths_--;
    for (Worker& worker : all_)  // what it had not read
      for (Line& line : worker.lines)
        if (line.life == life) line.requests.clear();
  }
  void come_back() {
    const int number = static_cast<int>(below(static_cast<size_t>(servers_)));
    if (life_of(number) < 0) lives_.push_back({.number = number});
  }

  template <class Do>
  void with_part(const Do& does) {
    const int life = static_cast<int>(below(lives_.size()));
    if (!at(life).lives || at(life).parts.empty()) return;
    auto part = at(life).parts.begin();
    std::advance(part, static_cast<ptrdiff_t>(below(at(life).parts.size())));
    does(life, part->second);
  }
  bool leads(int life, const Part& part) { return part.charge.primary == at(life).number && !part.reads; }

  /// Somebody hears of a death.
  void notice() {
    with_part([&](int life, Part& part) {
      if (part.writes && !at(part.writes->backup).lives) {
        part.writes->dropped = true;
        part.charge = after_death(part.charge, at(part.writes->backup).number).charge;
        part.writes.reset();
        send_due(part);
      } else if (part.reads && !at(part.reads->primary).lives) {
        while (!part.reads->entries.empty()) read(part);
        const bool may = !part.reads->dropped && part.charge.backup == at(life).number;
        if (!may) return void(at(life).parts.erase(part.charge.shard));
        part.charge = after_death(part.charge, part.charge.primary).charge;
        part.reads.reset();
        promotions_++;
      }
    });
    for (Worker& worker : all_)
      for (size_t shard = 0; shard < worker.lines.size(); shard++)
        if (!at(worker.lines[shard].life).lives && below(3) == 0) reconnect(worker, shard);
  }

  void reconnect(Worker& worker, size_t shard) {
    Line& line = worker.lines[shard];
    for (uint64_t id : std::exchange(line.answers, {})) take(worker, line, id);
    bool anybody = false;
    for (int number : whom_to_ask(servers_, at(line.life).number, line.backup)) {
      const int life = life_of(number);
      if (life < 0) continue;
      const auto found = at(life).parts.find(static_cast<int>(shard));
      if (found == at(life).parts.end()) continue;
      Part& part = found->second;
      while (part.reads && !part.reads->entries.empty()) read(part);
      const Hearing hearing = hear(part.charge, number, line.epoch);
      anybody |= hearing.verdict == Hearing::Verdict::wait;
      if (hearing.verdict != Hearing::Verdict::accept) continue;
      line.life = life;
      line.epoch = hearing.epoch;
      line.backup = part.charge.backup;
      line.requests.clear();
      for (const auto& [id, ask] : line.open) line.requests.push_back(ask);
      return;
    }
    if (!anybody) give_up(static_cast<int>(shard));
  }

  /// A worker has found nobody. That is right where nobody who lives has all of the shard.
  void give_up(int shard) {
    lost_ = true;
    for (const Life& life : lives_)
      if (const auto part = life.parts.find(shard);
          life.lives && part != life.parts.end() &&
          (part->second.charge.primary == life.number || part->second.charge.backup == life.number))
        fault_ = fmt::format("part {} was given up, and server {} has it", shard, life.number);
  }

  void serve() {
    Worker& worker = all_[below(all_.size())];
    const size_t shard = below(worker.lines.size());
    Line& line = worker.lines[shard];
    if (line.requests.empty() || !at(line.life).lives) return;
    const auto found = at(line.life).parts.find(static_cast<int>(shard));
    if (found == at(line.life).parts.end()) return;
    Part& part = found->second;
    const Ask ask = line.requests.front();
    if (below(10) != 0) line.requests.pop_front();  // or it comes twice
    if (hear(part.charge, at(line.life).number, line.epoch).verdict != Hearing::Verdict::accept) return;
    const auto [first, news] = accepts_.emplace(std::pair(part.charge.shard, part.charge.epoch), line.life);
    if (!news && first->second != line.life)
      fault_ = fmt::format("two primaries of part {} in epoch {}", shard, part.charge.epoch);
    if (part.writes) part.writes->entries.push_back({.order = ++part.order, .ask = ask});
    for (const Told& told : part.store.carry_out(ask, rules_)) part.held.push_back({part.order, told});
  }

  void read(Part& part) {
    const Entry entry = part.reads->entries.front();
    part.reads->entries.pop_front();
    if (entry.copy) part.store = *entry.copy;
    if (entry.filled) part.charge = filled(part.charge).charge;
    if (entry.ask) part.store.carry_out(*entry.ask, rules_);
    part.reads->applied = entry.order;
  }
  void follow() {
    with_part([&](int, Part& part) {
      if (part.reads && !part.reads->entries.empty()) read(part);
    });
  }

  void send_due(Part& part) {
    while (!part.held.empty() &&
           may_acknowledge(part.charge, part.held.front().order, part.writes ? part.writes->applied : part.order)) {
      const Told told = part.held.front().told;
      part.held.pop_front();
      Line& line = all_[static_cast<size_t>(told.worker)].lines[static_cast<size_t>(part.charge.shard)];
      const auto& parts = at(line.life).parts;
      const auto asked = parts.find(part.charge.shard);
      if (asked != parts.end() && &asked->second == &part) line.answers.push_back(told.id);
    }
  }
  void answer() {
    with_part([&](int, Part& part) { send_due(part); });
    for (Worker& worker : all_)
      for (Line& line : worker.lines)
        if (!line.answers.empty() && below(2) == 0) {
          const uint64_t id = line.answers.front();
          line.answers.pop_front();
          take(worker, line, id);
        }
  }

  void look_for_backup() {
    with_part([&](int life, Part& part) {
      if (!leads(life, part) || part.writes) return;
      const Move move = appoint(part.charge, living(at(life).number));
      if (move.why != Move::Why::appointed) return;
      send_due(part);
      const int backup = life_of(move.server);
      const auto log = std::make_shared<Log>(Log{life, backup});
      auto& parts = at(backup).parts;
      if (const auto had = parts.find(part.charge.shard); had != parts.end()) {
        if (had->second.charge.primary == move.server || had->second.charge.epoch > part.charge.epoch) return;
        parts.erase(had);
      }
      parts.emplace(part.charge.shard, Part{move.charge, Store(workers_), nullptr, log});
      log->entries.push_back({.order = 1, .copy = std::make_shared<Store>(part.store)});
      log->entries.push_back({.order = 2, .filled = true});
      part.order = 2;
      part.writes = log;
      part.charge = filled(move.charge).charge;
      refills_++;
    });
  }

  void ask(Worker& worker, size_t shard, Ask::Kind kind) {
    Line& line = worker.lines[shard];
    const Ask ask{kind, static_cast<int>(&worker - all_.data()), line.next_id++, worker.step};
    line.open.emplace(ask.id, ask);
    if (at(line.life).lives) line.requests.push_back(ask);
  }
  void take(Worker& worker, Line& line, uint64_t id) {
    const auto found = line.open.find(id);
    if (found == line.open.end()) return;
    if (found->second.kind == Ask::push)
      acknowledged_[&line - worker.lines.data()].emplace(static_cast<int>(&worker - all_.data()), found->second.step);
    line.open.erase(found);
  }

  void work() {
    Worker& worker = all_[below(all_.size())];
    if (std::any_of(worker.lines.begin(), worker.lines.end(), [](const Line& line) { return !line.open.empty(); }))
      return;
    if (worker.doing == Worker::wants_step) {
      ask(worker, 0, Ask::begin);
      worker.doing = Worker::begins;
    } else if (worker.doing == Worker::begins) {
      for (const Worker& other : all_)
        if (other.doing != Worker::done && other.doing != Worker::leaves && worker.step - other.step > rules_.bound)
          fault_ = fmt::format("a worker began step {} while another is at {}: the bound is {}", worker.step,
                               other.step, rules_.bound);
      for (size_t shard = 0; shard < worker.lines.size(); shard++) ask(worker, shard, Ask::push);
      worker.doing = Worker::pushes;
    } else if (worker.doing == Worker::pushes) {
      worker.step++;
      worker.doing = worker.step < steps_ ? Worker::wants_step : Worker::leaves;
      if (worker.doing == Worker::leaves) ask(worker, 0, Ask::leave);
    } else {
      worker.doing = Worker::done;
    }
  }

  std::string check_end() {
    for (const auto& [shard, updates] : acknowledged_) {
      const Line& line = all_[0].lines[static_cast<size_t>(shard)];
      int life = line.life;
      for (size_t one = 0; one < lives_.size(); one++)  // who answers now
        if (lives_[one].lives && lives_[one].parts.contains(static_cast<int>(shard)) &&
            leads(static_cast<int>(one), lives_[one].parts.at(static_cast<int>(shard))))
          life = static_cast<int>(one);
      // The primary may have died since, and nobody has heard of it.
      for (size_t one = 0; one < lives_.size() && !at(life).lives; one++)
        if (lives_[one].lives && lives_[one].parts.contains(static_cast<int>(shard)) &&
            lives_[one].parts.at(static_cast<int>(shard)).charge.backup == lives_[one].number)
          life = static_cast<int>(one);
      if (!at(life).lives) continue;  // both died after the last update
      Part& part = at(life).parts.at(static_cast<int>(shard));
      while (part.reads && !part.reads->entries.empty()) read(part);
      for (const auto& update : updates)
        if (const auto times = std::count(part.store.order.begin(), part.store.order.end(), update); times != 1)
          return fmt::format("the update of worker {} in step {} was acknowledged, and part {} has it {} times",
                             update.first, update.second, shard, times);
      if (!part.writes || !at(part.writes->backup).lives) continue;
      Part& backup = at(part.writes->backup).parts.at(static_cast<int>(shard));
      while (backup.reads && !backup.reads->entries.empty()) read(backup);
      if (backup.store.order != part.store.order || backup.store.clocks != part.store.clocks)
        return fmt::format("primary and backup of part {} differ at rest", shard);
    }
    return "";
  }

  std::mt19937_64 random_;
  const int servers_, workers_;
  const int64_t steps_;
  size_t deaths_;
  Rules rules_;
  std::vector<Life> lives_;
  std::vector<Worker> all_;
  std::map<ptrdiff_t, std::set<std::pair<int, int64_t>>> acknowledged_;  // by shard
  std::map<std::pair<int, uint64_t>, int> accepts_;                      // by shard and epoch: whose life
  std::string fault_;
  bool lost_ = false;
  int promotions_ = 0, refills_ = 0;
};

TEST(ReplicasSimulation, NothingAcknowledgedIsLostOrAppliedTwice) {
  int lost = 0, promotions = 0, refills = 0;
  constexpr uint64_t kHistories = 12'000;
  for (uint64_t seed = 1; seed <= kHistories; seed++) {
    History history(seed);
    ASSERT_EQ(history.run(), "") << "seed " << seed;
    lost += history.lost();
    promotions += history.promotions();
    refills += history.refills();
  }
  // It was about something.
  EXPECT_GT(promotions, 3000);
  EXPECT_GT(refills, 3000);
  EXPECT_LT(lost, 6000);
}

}  // namespace
}  // namespace trireme::ps::tests
