// label: unit
// Who rows next: single decisions, and a simulation of many random histories of a job, with its own time, in which
// ranks commit steps as crews while workers come, die, stop, are cut off, and are asked to go, and while coordinators
// with a journal die and are followed by others.
#include <fmt/ranges.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cstdlib>
#include <deque>
#include <map>
#include <optional>
#include <random>

#include <trireme/cluster/coordination/crews.h>

namespace trireme::cluster::tests {
namespace {

using Ranks = std::vector<int>;

Clock::time_point at(int64_t ms) { return Clock::time_point(std::chrono::milliseconds(ms)); }

// ---- single decisions ----

struct Job {
  explicit Job(int ranks, CrewPolicy given = {}) : policy(given) {
    policy.target = std::max(policy.target, ranks);
    for (int rank = 0; rank < ranks; rank++) {
      hands.push_back({.rank = rank, .confirmed = 0});
      book.ranks.push_back(rank);
    }
  }
  Hand& hand(int rank) {
    return *std::find_if(hands.begin(), hands.end(), [&](const Hand& h) { return h.rank == rank; });
  }
  void lose(int rank, bool dead = true) {
    hand(rank).standing = Standing::lost;
    hand(rank).dead = dead;
    hand(rank).loss = fmt::format("rank {} is gone", rank);
  }
  void come(int rank, bool ready = true) { hands.push_back({.rank = rank, .ready = ready, .rowed = false}); }
  CrewPlan next(int64_t now = 0) {
    const CrewPlan plan = plan_crew(at(now), hands, book, policy);
    book = book_after(at(now), book, plan);
    for (int rank : plan.leaving) hand(rank).dismissed = true;
    return plan;
  }
  void confirm() {
    for (int rank : book.ranks) {
      hand(rank).confirmed = static_cast<int64_t>(book.epoch);
      hand(rank).rowed = true;
    }
  }
  std::vector<Hand> hands;
  CrewBook book;
  CrewPolicy policy;
};

TEST(Crews, StayAsTheyAreWhenNothingHappens) {
  Job job(3);
  EXPECT_EQ(job.next().kind, CrewPlan::stay);
  EXPECT_EQ(job.book.epoch, 0u);
}

TEST(Crews, ALossEndsTheCrewAtOnceAndSparesComeIn) {
  Job job(4);
  job.hand(0).confirmed = -1;  // whether all are in it or not
  job.come(4);
  job.come(5);
  job.come(6, false);
  job.lose(1);
  const CrewPlan plan = job.next();
  EXPECT_EQ(plan.kind, CrewPlan::change);
  EXPECT_FALSE(plan.announced);
  EXPECT_EQ(plan.ranks, (Ranks{0, 2, 3, 4}));
  EXPECT_EQ(plan.reason, "rank 1 is gone; rank 4 comes in");
  EXPECT_EQ(spares_of(job.hands, job.book), (Ranks{5}));
  EXPECT_EQ(job.next().kind, CrewPlan::stay);
}

TEST(Crews, ANewcomerIsAnnouncedOnceAllAreInTheCrew) {
  Job job(2, {.target = 3});
  job.come(2, false);
  EXPECT_EQ(job.next().kind, CrewPlan::stay);
  job.hand(2).ready = true;
  job.hand(1).confirmed = -1;
  EXPECT_EQ(job.next().kind, CrewPlan::stay);
  job.hand(1).confirmed = 0;
  CrewPlan plan = job.next();
  EXPECT_TRUE(plan.announced);
  EXPECT_EQ(plan.ranks, (Ranks{0, 1, 2}));
  EXPECT_EQ(plan.reason, "rank 2 comes in");
  job.policy.target = 1;
  EXPECT_EQ(job.next().kind, CrewPlan::stay);  // one change at a time
  job.confirm();
  plan = job.next();
  EXPECT_TRUE(plan.announced);
  EXPECT_EQ(plan.ranks, (Ranks{0}));
  EXPECT_EQ(plan.leaving, (Ranks{1, 2}));
  EXPECT_EQ(plan.reason, "ranks 1 and 2 go");
}

TEST(Crews, WhoIsDrainedGoesWhenTheOthersCanDoWithoutIt) {
  Job job(2, {.least = 2});
  job.hand(0).drained = true;
  EXPECT_EQ(job.next().kind, CrewPlan::stay);
  job.come(2);
  const CrewPlan plan = job.next();
  EXPECT_EQ(plan.ranks, (Ranks{1, 2}));
  EXPECT_EQ(plan.reason, "rank 2 comes in; rank 0 goes");
}

/// It is not in the announced crew, but the one that rows needs it.
TEST(Crews, TheLossOfOneWhoGoesEndsTheCrewThatStillRows) {
  Job job(3);
  job.hand(2).drained = true;
  EXPECT_EQ(job.next().ranks, (Ranks{0, 1}));
  job.lose(2);
  const CrewPlan plan = job.next();
  EXPECT_EQ(plan.kind, CrewPlan::change);
  EXPECT_FALSE(plan.announced);
  EXPECT_EQ(plan.ranks, (Ranks{0, 1}));
  job.confirm();
  EXPECT_EQ(job.next().kind, CrewPlan::stay);
}

TEST(Crews, WhoWasDismissedDoesNotComeBack) {
  Job job(3, {.rejoin_timeout = Seconds(1)});
  job.policy.target = 2;
  EXPECT_EQ(job.next().leaving, (Ranks{2}));
  job.lose(0);
  EXPECT_EQ(job.next().ranks, (Ranks{1}));
}

TEST(Crews, TooFewWaitForNewcomersAndNotForever) {
  Job job(3, {.least = 2, .rejoin_timeout = Seconds(10)});
  job.lose(0);
  job.lose(2);
  CrewPlan plan = job.next(1000);
  EXPECT_EQ(plan.kind, CrewPlan::hold);
  EXPECT_EQ(plan.reason,
            "rank 0 is gone; rank 2 is gone; 1 worker is left, and the job needs at least 2: newcomers are awaited "
            "for 10 s");
  EXPECT_EQ(job.book.epoch, 1u);
  EXPECT_EQ(job.next(10'900).kind, CrewPlan::stay);
  Job late = job;
  plan = late.next(11'100);
  EXPECT_EQ(plan.kind, CrewPlan::change);
  EXPECT_TRUE(plan.closing);
  EXPECT_FALSE(plan.announced);
  EXPECT_EQ(plan.ranks, (Ranks{1}));
  const std::string why =
      "rank 0 is gone; rank 2 is gone; 1 worker is left, and the job needs at least 2. Nobody came in their place "
      "within 10 s. Start more workers, or lower the least number of workers, and resume from the newest checkpoint";
  EXPECT_EQ(plan.reason, why);
  late.confirm();
  late.come(3);  // too late
  EXPECT_EQ(late.next(11'200).kind, CrewPlan::stay);
  Job torn = late;
  late.hand(1).standing = Standing::left;  // it has saved what it had
  plan = late.next(11'300);
  EXPECT_EQ(plan.kind, CrewPlan::give_up);
  EXPECT_EQ(plan.reason, why);
  torn.lose(1);
  EXPECT_EQ(torn.next(11'300).kind, CrewPlan::give_up);
  job.come(3);
  plan = job.next(10'900);
  EXPECT_EQ(plan.ranks, (Ranks{1, 3}));
  EXPECT_FALSE(plan.announced);
  EXPECT_EQ(plan.reason, "rank 0 is gone; rank 2 is gone; rank 3 comes in");
  EXPECT_EQ(job.book.epoch, 2u);
}

TEST(Crews, WithoutATimeToWaitTooFewCloseAtOnce) {
  Job job(3, {.least = 3});
  job.come(3, false);
  job.lose(1);
  CrewPlan plan = job.next();
  EXPECT_TRUE(plan.closing);
  EXPECT_EQ(plan.ranks, (Ranks{0, 2}));
  job.lose(0);  // in the middle of it
  plan = job.next();
  EXPECT_TRUE(plan.closing);
  EXPECT_EQ(plan.ranks, (Ranks{2}));
  job.lose(2);
  EXPECT_EQ(job.next().kind, CrewPlan::give_up);
}

/// A job that is to stop waits no longer.
TEST(Crews, ThoseWhoWaitCloseWhenTheTimeIsTakenBack) {
  Job job(2, {.least = 2, .rejoin_timeout = Seconds(600)});
  job.lose(0);
  EXPECT_EQ(job.next(1000).kind, CrewPlan::hold);
  EXPECT_EQ(job.next(2000).kind, CrewPlan::stay);
  job.policy.rejoin_timeout = Seconds(0);
  const CrewPlan plan = job.next(3000);
  EXPECT_TRUE(plan.closing);
  EXPECT_EQ(plan.ranks, (Ranks{1}));
  EXPECT_EQ(plan.reason.find("Nobody came"), std::string::npos) << plan.reason;
}

TEST(Crews, NewcomersReplaceAWholeCrewOnlyIfItIsDead) {
  Job job(2, {.rejoin_timeout = Seconds(1)});
  job.come(2);
  job.lose(0);
  Job silent = job;
  job.lose(1);
  EXPECT_EQ(job.next().ranks, (Ranks{2}));
  silent.lose(1, false);
  const CrewPlan plan = silent.next();
  EXPECT_EQ(plan.kind, CrewPlan::give_up);
  EXPECT_NE(plan.reason.find("newcomers must not go on in their place"), std::string::npos) << plan.reason;
}

/// One who was dismissed rows to the end of its step, and may end the whole job with it.
TEST(Crews, NewcomersWaitForOneWhoGoesAndMayStillRow) {
  Job job(2);
  job.come(2, false);
  job.hand(1).drained = true;
  EXPECT_EQ(job.next().ranks, (Ranks{0}));
  job.hand(2).ready = true;
  job.lose(0);
  EXPECT_EQ(job.next().kind, CrewPlan::give_up);
}

TEST(Crews, NobodyComesInWhenTheWorkIsDone) {
  Job job(2);
  job.policy.target = 4;
  job.hand(0).standing = Standing::left;
  job.come(2);
  EXPECT_EQ(job.next().kind, CrewPlan::stay);
  job.hand(1).standing = Standing::left;
  EXPECT_EQ(job.next().kind, CrewPlan::over);
  Job late(1);  // it was done before the newcomer was in
  late.policy.target = 2;
  late.come(1);
  EXPECT_EQ(late.next().ranks, (Ranks{0, 1}));
  late.hand(0).standing = Standing::left;
  EXPECT_EQ(late.next().kind, CrewPlan::over);
  Job torn(2, {.least = 2});
  torn.hand(0).standing = Standing::left;
  torn.lose(1);
  EXPECT_EQ(torn.next().kind, CrewPlan::over);
}

TEST(Crews, NobodyIsTakenInWhileMachinesAreNotKnown) {
  Job job(2);
  job.come(2);
  job.hand(0).placed = false;
  job.lose(1);
  EXPECT_EQ(job.next().ranks, (Ranks{0}));
  job.hand(0).placed = true;
  job.confirm();
  EXPECT_EQ(job.next().ranks, (Ranks{0, 2}));
}

// ---- the simulation ----
//
// One tick is a millisecond. The desk is the functions above with the books that a desk keeps; ranks do what
// World::regroup() and World::enter() promise. The state of a training is its *history*: for each step, the epoch of
// the crew that committed it. A rank adds a step when all of its crew have brought their part of it; a new crew goes on
// with the longest history that one of it has.

constexpr int kSteps = 12;
constexpr int64_t kHeartbeatLimit = 30, kSessionLimit = 40, kRejoin = 150, kChaos = 250, kLatest = 20'000;
constexpr int64_t kPatience = 120, kReturn = 50;  // where the coordinator has a journal

using Mask = uint64_t;  // of rank numbers
Mask bit(int rank) { return Mask{1} << rank; }
Mask mask_of(const Ranks& ranks) {
  Mask mask = 0;
  for (int rank : ranks) mask |= bit(rank);
  return mask;
}

struct Word {
  enum Kind { crew, failed, closed, over, ready, confirm, leave };
  Kind kind;
  int64_t when;
  int from = 0;
  CrewChange change;
};

/// What the ranks of one epoch share.
struct Meeting {
  Mask crew = 0, come = 0, synced = 0;
  bool known = false;                                // somebody has the state of a crew before
  std::vector<uint64_t> longest;                     // history, of those who have synced
  std::array<Mask, kSteps + 1> brought{}, wanted{};  // parts of each step; the last is the end
  std::array<uint64_t, kSteps + 1> state{};          // hash of the history that the step is made on
  bool closing = false;
};

struct Rank {
  enum State { preparing, waiting, joining, syncing, rowing, regrouping };
  int number = 0;
  State state = joining;
  bool alive = true;
  int64_t prepared = 0, stopped_until = 0, cut_until = 0, silence = 0, died = 0;
  uint64_t epoch = 0;
  Mask crew = 0;
  bool brought = false, finished = false;
  bool veteran = false;  // it has the state of a crew
  std::vector<uint64_t> history;
  std::deque<Word> inbox;
  CrewChange latest;          // crew
  uint64_t ended_before = 0;  // epochs that a loss has ended
  // Where the coordinator has a journal:
  bool attached = true, leaving = false, said_ready = false;
  int64_t contact = 0, confirmed = -1;
};

class History {
 public:
  /// With a `journal` the desk dies, and another one takes the job over.
  explicit History(uint64_t seed, bool journal = false) : random_(seed), journal_(journal) {
    const int first = draw(1, 4);
    policy_ = {draw(1, first), first, chance(70) ? Seconds(kRejoin / 1e3) : Seconds(0)};
    most_ = first + draw(0, 3);
    replaces_ = chance(70);
    for (int rank = 0; rank < first; rank++) add_rank(rank, false);
    for (int rank = 0; rank < first; rank++) {
      Rank& r = ranks_[static_cast<size_t>(rank)];
      r.crew = (Mask{1} << first) - 1;
      r.veteran = true;
      book_.ranks.push_back(rank);
    }
    meeting(0).crew = (Mask{1} << first) - 1;
  }

  /// "" or what went wrong.
  std::string run() {
    for (now_ = 1; now_ < kLatest && fault_.empty(); now_++) {
      if (now_ < kChaos) disturb();
      if (journal_ && now_ < kChaos) disturb_desk();
      if (desk_is_down_ && now_ >= desk_returns_) take_over();
      if (replaces_) launch();
      for (size_t i = 0; i < ranks_.size() && fault_.empty(); i++) act(ranks_[i]);
      serve();
      if (std::none_of(ranks_.begin(), ranks_.end(), [](const Rank& r) { return r.alive; }) && (!replaces_ || closed_))
        return ended();
    }
    return fault_.empty() ? fmt::format("no end after {} ms, in epoch {} with ranks {}", now_, book_.epoch,
                                        fmt::join(book_.ranks, ", "))
                          : fault_;
  }

  bool done() const { return done_; }
  bool saved() const { return saved_; }
  uint64_t epochs() const { return book_.epoch; }
  int desks() const { return desks_; }

 private:
  struct Entry {
    Hand hand;
    int64_t heard = 0;
    bool closed = false;
    bool away = false;              // it has not come back yet
    std::optional<int64_t> gone{};  // when its stream ended
  };

  int draw(int least, int most) {
    return least + static_cast<int>(random_() % static_cast<uint64_t>(most - least + 1));
  }
  bool chance(int percent) { return draw(0, 99) < percent; }
  Meeting& meeting(uint64_t epoch) { return meetings_[epoch]; }

  void add_rank(int number, bool newcomer) {
    Rank rank;
    rank.number = number;
    rank.state = newcomer ? Rank::preparing : Rank::joining;
    rank.prepared = now_ + draw(1, 40);
    rank.contact = now_;
    ranks_.push_back(rank);
    Entry entry;
    entry.hand = {.rank = number, .ready = !newcomer, .rowed = !newcomer};
    entry.heard = now_;
    desk_.push_back(entry);
  }

  // ---- what goes wrong ----

  void disturb() {
    if (closed_ || !chance(6)) return;
    Rank& victim = ranks_[static_cast<size_t>(draw(0, static_cast<int>(ranks_.size()) - 1))];
    switch (draw(0, 7)) {
      case 0:
      case 1:
        return kill(victim);
      case 2:
        victim.stopped_until = now_ + draw(5, 90);
        return;
      case 3:
        victim.cut_until = now_ + draw(5, 90);
        return;
      case 4: {  // a partition: some of them, maybe all, do not reach the desk
        const int64_t until = now_ + draw(20, 90);
        const bool all = chance(30);
        for (Rank& rank : ranks_)
          if (all ? rank.crew != 0 : chance(50)) rank.cut_until = until;
        return;
      }
      case 5:
        if (ranks_.size() < 40 && !desk_is_down_) add_rank(static_cast<int>(ranks_.size()), true);
        return;
      case 6:
        if (!desk_is_down_) entry(victim.number).hand.drained = true;
        return;
      default:
        if (!desk_is_down_) policy_.target = draw(policy_.least, most_);
    }
  }

  void disturb_desk() {
    if (closed_ || desk_is_down_) return;
    if (chance(2)) return end_desk();
    if (!chance(1)) return;
    Rank& victim = ranks_[static_cast<size_t>(draw(0, static_cast<int>(ranks_.size()) - 1))];
    Entry& one = entry(victim.number);  // its connection breaks, and it lives on
    if (!victim.alive || !victim.attached || cut(victim) || one.hand.standing != Standing::present || one.away) return;
    detach(victim);
    lose(one, true);
  }

  /// Words that are under way may still come, or not.
  void detach(Rank& rank) {
    rank.attached = false;
    to_desk_[rank.number].clear();
    while (!rank.inbox.empty() && chance(50)) rank.inbox.pop_back();
  }

  void end_desk() {
    desk_is_down_ = true;
    desk_returns_ = now_ + draw(1, chance(20) ? 150 : 60);
    for (Rank& rank : ranks_) detach(rank);
  }

  /// Another desk, which knows what was in the journal.
  void take_over() {
    desk_is_down_ = false;
    desks_++;
    book_.since = at(now_);
    for (Entry& one : desk_) {
      one.heard = now_;
      one.away = one.hand.standing == Standing::present;
      if (one.gone) one.gone = now_;
    }
  }

  void kill(Rank& rank) {
    if (!rank.alive) return;
    rank.alive = false;
    rank.died = now_;
  }

  /// What a launcher does that replaces who is lost.
  void launch() {
    if (closed_ || desk_is_down_ || ranks_.size() >= 60 || !chance(10)) return;
    const auto there = std::count_if(ranks_.begin(), ranks_.end(), [](const Rank& rank) { return rank.alive; });
    if (there < policy_.target) add_rank(static_cast<int>(ranks_.size()), true);
  }

  // ---- ranks ----

  bool cut(const Rank& rank) const { return now_ < rank.cut_until; }

  void say(Rank& rank, Word::Kind kind, uint64_t epoch = 0) {
    if (kind == Word::ready) rank.said_ready = true;
    if (kind == Word::confirm) rank.confirmed = static_cast<int64_t>(epoch);
    if (!rank.attached) return;  // it says it when it has come back
    Word word{kind, now_ + draw(0, 5), rank.number, {}};
    word.change.epoch = epoch;
    to_desk_[rank.number].push_back(word);
  }

  void act(Rank& rank) {
    if (!rank.alive || now_ < rank.stopped_until) return;
    rank.silence = cut(rank) ? rank.silence + 1 : 0;
    if (!journal_ && rank.silence > kSessionLimit) return kill(rank);  // it stops itself
    if (journal_ && !stay_in_contact(rank)) return;
    if (chance(70)) hear(rank);  // one that was stopped may go on for a moment before it hears that it was given up
    if (!rank.alive || rank.leaving || !chance(60)) return;
    switch (rank.state) {
      case Rank::preparing:
        if (now_ < rank.prepared) return;
        say(rank, Word::ready);
        rank.state = Rank::waiting;
        return;
      case Rank::waiting:
        return enter(rank);
      case Rank::joining:
        return join(rank);
      case Rank::syncing:
        return sync(rank);
      case Rank::rowing:
        return row(rank);
      case Rank::regrouping:
        return regroup(rank);
    }
  }

  /// False when it has stopped itself, or was given up.
  bool stay_in_contact(Rank& rank) {
    if (now_ - rank.contact > kPatience) return kill(rank), false;
    if (cut(rank) || desk_is_down_) return true;
    if (!rank.attached && chance(30)) come_back(rank);
    if (rank.attached) rank.contact = now_;
    return rank.alive;
  }

  void come_back(Rank& rank) {
    Entry& one = entry(rank.number);
    if (closed_ || one.hand.standing != Standing::present) return kill(rank);
    if (rank.latest.epoch > book_.epoch) fault_ = "the journal is older than what it was told";
    rank.attached = true;
    rank.inbox.clear();
    one.away = false;
    one.heard = now_;
    if (interrupting_.epoch > rank.latest.epoch) tell(rank.number, {Word::crew, 0, 0, interrupting_});
    if (latest_.epoch > std::max(rank.latest.epoch, interrupting_.epoch))
      tell(rank.number, {Word::crew, 0, 0, latest_});
    if (rank.said_ready) say(rank, Word::ready);
    if (rank.confirmed >= 0) say(rank, Word::confirm, static_cast<uint64_t>(rank.confirmed));
    if (rank.leaving) say(rank, Word::leave);
  }

  void hear(Rank& rank) {
    while (!cut(rank) && !rank.inbox.empty() && rank.inbox.front().when <= now_) {
      const Word word = rank.inbox.front();
      rank.inbox.pop_front();
      if (word.kind != Word::crew) return kill(rank);  // the job has failed or is over, or this rank was given up
      rank.latest = word.change;
      if (!word.change.announced) rank.ended_before = word.change.epoch;
      const bool crewed = rank.state != Rank::preparing && rank.state != Rank::waiting;
      if (crewed && rank.epoch < rank.ended_before) rank.state = Rank::regrouping;
    }
  }

  void go_to(Rank& rank, const CrewChange& change) {
    rank.epoch = change.epoch;
    rank.crew = mask_of(change.ranks);
    rank.brought = false;
    rank.state = Rank::joining;
    if (meeting(rank.epoch).crew != rank.crew)
      fault_ = fmt::format("rank {} knows another crew of epoch {}", rank.number, rank.epoch);
  }

  void enter(Rank& rank) {
    if ((mask_of(rank.latest.ranks) & bit(rank.number)) != 0) go_to(rank, rank.latest);
  }

  void regroup(Rank& rank) {
    if (rank.latest.epoch <= rank.epoch || rank.latest.ranks.empty()) return;
    if ((mask_of(rank.latest.ranks) & bit(rank.number)) != 0) return go_to(rank, rank.latest);
    leave(rank);  // dismissed
  }

  void leave(Rank& rank) {
    if (rank.leaving) return;
    say(rank, Word::leave);
    rank.leaving = true;  // with a journal until it is heard
    if (!journal_) kill(rank);
  }

  void join(Rank& rank) {
    Meeting& here = meeting(rank.epoch);
    here.come |= bit(rank.number);
    if (here.come != here.crew) return;
    say(rank, Word::confirm, rank.epoch);
    rank.state = Rank::syncing;
  }

  /// The longest history of all is everybody's. A crew of newcomers alone has nothing to go on with: the job fails.
  void sync(Rank& rank) {
    Meeting& here = meeting(rank.epoch);
    if ((here.synced & bit(rank.number)) == 0) {
      here.synced |= bit(rank.number);
      here.known = here.known || rank.veteran;
      if (rank.history.size() > here.longest.size()) here.longest = rank.history;
    }
    if (here.synced != here.crew) return see_deaths(rank);
    if (!here.known) {  // their launchers end all of them
      closed_ = true;
      for (Rank& other : ranks_)
        if (other.alive) kill(other);
      return;
    }
    rank.veteran = true;
    rank.history = here.longest;
    rank.state = Rank::rowing;
    if (!here.closing) return;
    saved_ = true;
    leave(rank);
  }

  /// Ranks of a machine see at once that a neighbour has died; others may wait for the desk.
  void see_deaths(Rank& rank) {
    for (const Rank& other : ranks_)
      if ((rank.crew & bit(other.number)) != 0 && !other.alive && chance(20)) rank.state = Rank::regrouping;
  }

  void row(Rank& rank) {
    Meeting& here = meeting(rank.epoch);
    const size_t step = rank.history.size();
    if (!rank.brought) {
      uint64_t hash = 1;
      for (uint64_t epoch : rank.history) hash = hash * 1'000'003 + epoch;
      if (here.brought[step] == 0) here.state[step] = hash;
      if (here.state[step] != hash) fault_ = fmt::format("epoch {} rows on two states at step {}", rank.epoch, step);
      here.brought[step] |= bit(rank.number);
      if (rank.latest.epoch > rank.epoch) here.wanted[step] |= bit(rank.number);
      rank.brought = true;
      if (here.brought[step] == here.crew) check_commit(rank.epoch, here, step);
      return;
    }
    if (here.brought[step] != here.crew) return see_deaths(rank);
    rank.brought = false;
    if (step == kSteps) {  // all are done
      rank.finished = true;
      return leave(rank);
    }
    rank.history.push_back(rank.epoch);
    if (here.wanted[step] != 0) rank.state = Rank::regrouping;
  }

  /// The last part of a step has come. Where others of the crew have gone on meanwhile, the one that brings it was
  /// given up, nobody sees what it does, and it is about to hear so.
  void check_commit(uint64_t epoch, const Meeting& here, size_t step) {
    for (const Rank& rank : ranks_)
      if ((here.crew & bit(rank.number)) != 0 && rank.epoch > epoch) return;
    if (here.closing) fault_ = fmt::format("epoch {} commits step {}, and is closing", epoch, step);
    if (epoch < newest_)
      fault_ = fmt::format("epoch {} commits step {} after epoch {} has committed", epoch, step, newest_);
    newest_ = epoch;
    int done = 0;
    for (const Rank& rank : ranks_) done += rank.finished ? 1 : 0;
    if (std::popcount(here.crew) + done < policy_.least)
      fault_ = fmt::format("{} ranks commit step {} of epoch {}, at least {} should", std::popcount(here.crew), step,
                           epoch, policy_.least);
  }

  // ---- the desk ----

  Entry& entry(int rank) { return desk_[static_cast<size_t>(rank)]; }

  void tell(int rank, Word word) {
    Rank& to = ranks_[static_cast<size_t>(rank)];
    word.when = std::max(now_ + draw(0, 6), to.inbox.empty() ? 0 : to.inbox.back().when);
    to.inbox.push_back(word);
  }

  void tell_all(const Word& word) {
    for (const Entry& one : desk_)
      if (one.hand.standing == Standing::present) tell(one.hand.rank, word);
  }

  void lose(Entry& one, bool disconnected) {
    one.hand.standing = Standing::lost;
    one.hand.dead = disconnected && !journal_;
    one.hand.ending = disconnected;
    if (disconnected) one.gone = now_;
    one.hand.loss = "lost";
    tell(one.hand.rank, {Word::closed, 0, 0, {}});
  }

  /// Newcomers alone go on only where nobody can who was there before.
  void check_replacement(const std::vector<Hand>& hands, const CrewBook& before, const Ranks& crew) {
    for (const Hand& hand : hands)
      if (hand.rowed && std::find(crew.begin(), crew.end(), hand.rank) != crew.end()) return;
    for (const Hand& hand : hands) {
      const Rank& rank = ranks_[static_cast<size_t>(hand.rank)];
      const bool rows = hand.rowed && (mask_of(before.ranks) & bit(hand.rank)) != 0 && rank.alive && rank.veteran;
      if (rows && (!journal_ || now_ - rank.contact <= kPatience))
        fault_ = fmt::format("newcomers take the place of rank {}, which lives", rank.number);
    }
  }

  void serve() {
    if (desk_is_down_) return;
    for (Entry& one : desk_) {
      if (one.gone && now_ - *one.gone > kPatience + kHeartbeatLimit) one.hand.dead = true;
      if (one.hand.standing != Standing::present) continue;
      if (one.away) {
        if (now_ - one.heard > kReturn) lose(one, false);
        continue;
      }
      Rank& rank = ranks_[static_cast<size_t>(one.hand.rank)];
      if (!cut(rank)) take_words(one, rank);
      if (one.hand.standing != Standing::present) continue;
      if (!cut(rank) && !rank.alive && to_desk_[rank.number].empty() && now_ - rank.died > draw(0, 5))
        lose(one, true);
      else if (now_ - one.heard > kHeartbeatLimit)
        lose(one, false);
    }
    for (int changes = 0; !closed_ && plan(); changes++)
      if (changes > 3) fault_ = "the desk plans and plans";
  }

  void take_words(Entry& one, Rank& rank) {
    if (rank.alive && now_ >= rank.stopped_until && chance(40)) one.heard = now_;
    std::deque<Word>& words = to_desk_[rank.number];
    while (!words.empty() && words.front().when <= now_) {
      const Word word = words.front();
      words.pop_front();
      if (word.kind == Word::ready) one.hand.ready = true;
      if (word.kind == Word::leave) {
        one.hand.standing = Standing::left;
        kill(rank);
      }
      if (word.kind != Word::confirm) continue;
      one.hand.confirmed = std::max(one.hand.confirmed, static_cast<int64_t>(word.change.epoch));
      one.hand.rowed = true;
    }
  }

  bool plan() {
    std::vector<Hand> hands;
    for (const Entry& one : desk_) hands.push_back(one.hand);
    const CrewPlan plan = plan_crew(at(now_), hands, book_, policy_);
    const CrewBook before = book_;
    book_ = book_after(at(now_), book_, plan);
    for (int rank : plan.leaving) entry(rank).hand.dismissed = true;
    switch (plan.kind) {
      case CrewPlan::stay:
        closed_ = std::none_of(hands.begin(), hands.end(),
                               [](const Hand& hand) { return hand.standing == Standing::present; }) &&
                  !book_.held;
        return false;
      case CrewPlan::change:
        meeting(book_.epoch).crew = mask_of(plan.ranks);
        meeting(book_.epoch).closing = plan.closing;
        if (!plan.announced) check_replacement(hands, before, plan.ranks);
        [[fallthrough]];
      case CrewPlan::hold:
        latest_ = {book_.epoch, plan.ranks, plan.reason, plan.announced, {}, {}, plan.closing};
        if (!plan.announced) interrupting_ = latest_;
        if (journal_ && now_ < kChaos && chance(10)) {  // it is in the journal, and nobody has heard of it
          end_desk();
          return false;
        }
        tell_all({Word::crew, 0, 0, latest_});
        return true;
      case CrewPlan::give_up:
        gave_up_ = plan.reason;
        [[fallthrough]];
      case CrewPlan::over:
        tell_all({Word::over, 0, 0, {}});
        closed_ = true;
        return false;
    }
    return false;
  }

  // ---- the end ----

  std::string ended() {
    const std::vector<uint64_t>* history = nullptr;
    for (const Rank& rank : ranks_) {
      if (!rank.finished) continue;
      if (history != nullptr && *history != rank.history) return "two ranks end with different histories";
      history = &rank.history;
    }
    done_ = history != nullptr;
    if (done_ && !std::is_sorted(history->begin(), history->end())) return "a later step is of an earlier epoch";
    return "";
  }

  std::mt19937_64 random_;
  int64_t now_ = 0;
  CrewPolicy policy_;
  int most_ = 1;
  const bool journal_;
  bool replaces_ = false, closed_ = false, done_ = false, saved_ = false;
  bool desk_is_down_ = false;
  int64_t desk_returns_ = 0;
  int desks_ = 1;
  CrewChange latest_, interrupting_;
  std::vector<Rank> ranks_;
  std::vector<Entry> desk_;  // by rank
  std::map<int, std::deque<Word>> to_desk_;
  CrewBook book_;
  std::map<uint64_t, Meeting> meetings_;
  uint64_t newest_ = 0;  // epoch that has committed
  std::string fault_, gave_up_;
};

TEST(Crews, RandomHistoriesEndAndCommitEachStepOnce) {
  const char* wanted = std::getenv("HISTORIES");
  const uint64_t histories = wanted != nullptr ? std::strtoull(wanted, nullptr, 10) : 12'000;
  uint64_t done = 0, saved = 0, epochs = 0;
  for (uint64_t seed = 0; seed < histories; seed++) {
    History history(seed);
    ASSERT_EQ(history.run(), "") << "seed " << seed;
    done += history.done() ? 1 : 0;
    saved += history.saved() ? 1 : 0;
    epochs += history.epochs();
  }
  // Most jobs survive all that, with many changes: otherwise nothing was tried.
  EXPECT_GT(done, histories / 2);
  EXPECT_GT(epochs, histories);
  EXPECT_GT(saved, histories / 100);
  std::printf("%llu histories: %llu ended with all steps, %llu saved what they had, %.1f changes of the crew each\n",
              static_cast<unsigned long long>(histories), static_cast<unsigned long long>(done),
              static_cast<unsigned long long>(saved), static_cast<double>(epochs) / static_cast<double>(histories));
}

/// The same, of jobs whose coordinator dies once or more often, and is followed by another one.
TEST(Crews, HistoriesWithCoordinatorsThatDieEndToo) {
  const char* wanted = std::getenv("HISTORIES");
  const uint64_t histories = wanted != nullptr ? std::strtoull(wanted, nullptr, 10) : 12'000;
  uint64_t done = 0, epochs = 0, desks = 0;
  for (uint64_t seed = 0; seed < histories; seed++) {
    History history(seed, true);
    ASSERT_EQ(history.run(), "") << "seed " << seed;
    done += history.done() ? 1 : 0;
    epochs += history.epochs();
    desks += static_cast<uint64_t>(history.desks());
  }
  EXPECT_GT(done, histories / 3);
  EXPECT_GT(epochs, histories);
  EXPECT_GT(desks, 2 * histories);
  std::printf("%llu histories: %llu ended with all steps, %.1f changes of the crew and %.1f coordinators each\n",
              static_cast<unsigned long long>(histories), static_cast<unsigned long long>(done),
              static_cast<double>(epochs) / static_cast<double>(histories),
              static_cast<double>(desks) / static_cast<double>(histories));
}

TEST(Crews, NewcomersWaitForACrewThatEndsByItself) {
  Job job(1);
  job.come(1);
  job.lose(0, false);
  job.hand(0).ending = true;
  EXPECT_EQ(job.next().kind, CrewPlan::stay);
  job.hand(0).dead = true;
  EXPECT_EQ(job.next().ranks, (Ranks{1}));
}

}  // namespace
}  // namespace trireme::cluster::tests
