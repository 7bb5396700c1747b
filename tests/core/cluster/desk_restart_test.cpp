// label: unit
// A desk that takes a job over from one that died: who comes back is known, what was said is said again, and nobody is
// told anything that the next desk would not know.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cstring>
#include <functional>
#include <memory>
#include <random>
#include <thread>

#include <trireme/base/error.h>
#include <trireme/cluster/coordination/desk.h>
#include <trireme/cluster/coordination/desk_image.h>

namespace trireme::cluster::tests {
namespace {

/// Outlives desks. When it is cut off, what is written does not arrive: the desk has died before.
struct Paper {
  journal::Contents contents;
  bool cut_off = false;
  std::function<void()> before_write;
};

class PaperJournal final : public journal::Journal {
 public:
  explicit PaperJournal(std::shared_ptr<Paper> paper) : paper_(std::move(paper)), contents_(paper_->contents) {}
  const std::string& name() const override { return name_; }
  const journal::Contents& contents() const override { return contents_; }
  void write(const journal::Changes& changes) override {
    if (paper_->before_write && !changes.empty()) paper_->before_write();
    apply_changes(changes, contents_);
    if (!paper_->cut_off) paper_->contents = contents_;
  }
  std::vector<std::string> take_remarks() override { return {}; }

 private:
  const std::string name_ = "paper";
  std::shared_ptr<Paper> paper_;
  journal::Contents contents_;
};

/// What a process has heard, over all its connections.
struct Ear final : Line {
  void welcome(const Welcome& w) override { welcomes++, id = w.member, patience = w.patience; }
  void placed(const Member& member) override { rank = member.rank; }
  void heartbeat(const std::string& /*waiting*/) override { heartbeats++; }
  void notice(const Failure& failure) override { notices.push_back(failure.reason); }
  void crew(const CrewChange& change) override { crews.push_back(change); }
  void dismissed(const std::string& reason) override { dismissal = reason; }
  void more(int /*workers*/) override {}
  void farewell() override { farewells++; }
  void close(const std::optional<Refusal>& refusal) override {
    closes++;
    if (refusal) why = *refusal;
  }
  uint64_t id = 0;
  int rank = -1, welcomes = 0, heartbeats = 0, farewells = 0, closes = 0;
  Seconds patience{0};
  Refusal why;
  std::string dismissal;
  std::vector<std::string> notices;
  std::vector<CrewChange> crews;
};

testing::AssertionResult has(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos ? testing::AssertionSuccess()
                                              : testing::AssertionFailure() << "'" << part << "' is not in: " << text;
}
#define EXPECT_HAS(text, part) EXPECT_TRUE(has(text, part))
#define ASSERT_HAS(text, part) ASSERT_TRUE(has(text, part))

struct Job {
  explicit Job(int ranks, bool elastic = false, int least = 1) {
    options.job = "job";
    options.token = "secret";
    options.host = "a";
    options.version = "1";
    options.patience = Seconds(60);
    options.membership = {.ranks = ranks, .heartbeat_limit = Seconds(1000), .least = least};
    options.membership.return_limit = Seconds(1000);
    if (elastic) options.membership.on_loss = OnLoss::change_crew;
    start();
  }

  void start() {
    options.journal = std::make_shared<PaperJournal>(paper);
    desk = std::make_unique<Desk>(options);
  }
  /// Another desk, after the death of this one.
  void restart() {
    desk.reset();
    paper->cut_off = false;
    start();
  }

  DeskOptions options;
  std::shared_ptr<Paper> paper = std::make_shared<Paper>();
  std::unique_ptr<Desk> desk;
};

struct Process {
  Process(Job& job, int rank, bool newcomer = false) : own(job), secret(fmt::format("secret of {}", rank)) {
    hello = {"job", "1", {.kind = Member::worker, .rank = rank, .host = "b", .pid = 7}, "10.0.0.1", 0};
    hello.member.newcomer = newcomer;
    hello.secret = secret;
    connect();
  }
  /// 0 where it was refused.
  uint64_t connect() {
    ear = std::make_shared<Ear>();
    hello.attempt++;
    return id = own.desk->attend("secret", hello, ear);
  }
  uint64_t come_back(uint64_t heard = 0) {
    if (hello.returning == 0) hello.returning = id;
    hello.heard = heard;
    return connect();
  }
  void confirm(uint64_t epoch) const { own.desk->confirm("secret", id, epoch, "m"); }
  Job& own;
  std::string secret;
  Hello hello;
  std::shared_ptr<Ear> ear;
  uint64_t id = 0;
};

TEST(DeskRestart, MembersComeBackAndTheJobEndsWell) {
  Job job(2);
  Process a(job, 0), b(job, 1);
  EXPECT_EQ(a.ear->patience, Seconds(60));
  job.desk->put("secret", a.id, "key", "value");
  const uint64_t old = b.id;
  job.restart();
  EXPECT_TRUE(job.desk->snapshot().complete);
  EXPECT_EQ(job.desk->snapshot().crew.away, (std::vector<int>{0, 1}));
  EXPECT_NE(b.come_back(), 0u);
  EXPECT_EQ(b.id, old);
  EXPECT_EQ(b.ear->rank, 1);
  std::string seen;
  job.desk->get("secret", b.id, "key", [&](const auto& answer) { seen = std::get<std::string>(answer); });
  EXPECT_EQ(seen, "value");
  a.come_back();
  EXPECT_TRUE(job.desk->snapshot().crew.away.empty());
  job.desk->leave("secret", a.id, 0, "", -1);
  job.desk->leave("secret", b.id, 0, "", -1);
  EXPECT_EQ(b.ear->farewells, 1);
  EXPECT_TRUE(job.desk->wait_ended(Deadline(Seconds(0))));
  EXPECT_TRUE(job.desk->snapshot().failures.empty());
  job.restart();  // it died before it could say that all is over
  EXPECT_TRUE(job.desk->wait_ended(Deadline(Seconds(0))));
  job.desk->conclude();
  job.restart();  // the next job
  EXPECT_FALSE(job.desk->wait_ended(Deadline(Seconds(0))));
  EXPECT_TRUE(job.desk->snapshot().members.empty());
  EXPECT_EQ(job.paper->contents.size(), 2u);
  const Process next(job, 0);
  EXPECT_NE(next.id, 0u);
}

TEST(DeskRestart, WithoutAJournalNobodyWaits) {
  Job job(1);
  job.options.journal = nullptr;
  job.desk = std::make_unique<Desk>(job.options);
  Process a(job, 0);
  EXPECT_EQ(a.ear->patience, Seconds(0));
  job.desk = std::make_unique<Desk>(job.options);
  EXPECT_EQ(a.come_back(), 0u);
  EXPECT_HAS(a.ear->why.text, "does not know host b (process 7) as member 1");
}

TEST(DeskRestart, WrongOnesAreRefused) {
  Job job(2);
  Process a(job, 0), b(job, 1);
  job.restart();
  a.hello.secret = "another";
  EXPECT_EQ(a.come_back(), 0u);
  EXPECT_HAS(a.ear->why.text, "does not know host b (process 7) as member 1");
  a.hello.secret = b.secret;  // the right one of somebody else
  EXPECT_EQ(a.come_back(), 0u);
  EXPECT_EQ(a.ear->why.kind, Refused::argument);
  a.hello.secret = a.secret;
  a.hello.job = "other";
  EXPECT_EQ(a.come_back(), 0u);
  a.hello.job = "job";
  EXPECT_NE(a.come_back(), 0u);
  Process stranger(job, 1);  // without having been there
  EXPECT_NE(stranger.id, 0u) << "the same process, whose first answer was lost";
  stranger.hello.secret = "a new one";
  stranger.hello.returning = 0;
  EXPECT_EQ(stranger.connect(), 0u);
  EXPECT_HAS(stranger.ear->why.text, "rank 1 is taken");
}

TEST(DeskRestart, AJournalOfAnotherJobIsRefusedByName) {
  Job job(2);
  const Process a(job, 0);
  const auto refusal = [&](const std::function<void(DeskOptions&)>& change) {
    DeskOptions options = job.options;
    options.journal = std::make_shared<PaperJournal>(job.paper);
    change(options);
    try {
      Desk{options};
    } catch (const InvalidArgument& error) {
      return std::string(error.what());
    }
    return std::string("no error");
  };
  EXPECT_HAS(refusal([](DeskOptions& o) { o.job = "mine"; }), "the journal paper is of job 'job', not of 'mine'");
  EXPECT_HAS(refusal([](DeskOptions& o) { o.token = "other"; }), "of job 'job' with another token");
  EXPECT_HAS(refusal([](DeskOptions& o) { o.membership.ranks = 3; }), "with 2 ranks, not 3");
  EXPECT_HAS(refusal([](DeskOptions& o) { o.membership.on_loss = OnLoss::change_crew; }), "whose crew does not change");
  for (const auto& [key, value] : job.paper->contents) EXPECT_EQ(value.find("secret"), value.npos) << key;
}

TEST(DeskRestart, WhoDoesNotComeBackIsLost) {
  Job job(2);
  job.options.membership.return_limit = Seconds(0.05);
  Process a(job, 0), b(job, 1);
  job.restart();
  a.come_back();
  EXPECT_TRUE(job.desk->snapshot().failures.empty());
  std::this_thread::sleep_for(std::chrono::milliseconds(100));
  job.desk->heartbeat("secret", a.id);
  job.desk->tick(Seconds(0));
  ASSERT_EQ(a.ear->notices.size(), 1u);
  EXPECT_HAS(a.ear->notices[0], "rank 1 on host b (process 7) has not come back within 0.05 s");
  EXPECT_NE(b.come_back(), 1u);
  EXPECT_EQ(b.ear->why.kind, Refused::failed);
}

TEST(DeskRestart, TheCrewGoesOnWithoutWhoDoesNotComeBack) {
  Job job(3, true);
  Process a(job, 0), b(job, 1), c(job, 2);
  for (const Process* each : {&a, &b, &c}) each->confirm(0);
  job.options.membership.return_limit = Seconds(0.05);
  job.restart();
  a.come_back();
  b.come_back();
  EXPECT_TRUE(a.ear->crews.empty());
  std::this_thread::sleep_for(std::chrono::milliseconds(100));
  job.desk->tick(Seconds(0));
  ASSERT_EQ(a.ear->crews.size(), 1u);
  EXPECT_EQ(a.ear->crews[0].epoch, 1u);
  EXPECT_EQ(a.ear->crews[0].ranks, (std::vector<int>{0, 1}));
  EXPECT_EQ(c.come_back(), 0u);
  EXPECT_HAS(c.ear->why.text, "It was given up for lost, and the others go on without it");
}

TEST(DeskRestart, WhatWasMissedIsToldAgain) {
  Job job(3, true);
  Process a(job, 0), b(job, 1), c(job, 2);
  Process spare(job, 3, true);
  job.desk->ready("secret", spare.id, "m");
  for (const Process* each : {&a, &b, &c}) each->confirm(0);
  job.desk->disconnected(b.id);  // epoch 1: 0, 2, 3
  for (const Process* each : {&a, &c, &spare}) each->confirm(1);
  job.desk->drain(3);
  job.desk->set_target(2);  // epoch 2 is announced: 0, 2
  const std::vector<CrewChange> told = a.ear->crews;
  ASSERT_EQ(told.size(), 2u);
  job.restart();
  EXPECT_EQ(job.desk->snapshot().crew.ranks, (std::vector<int>{0, 2}));
  a.come_back(2);
  EXPECT_TRUE(a.ear->crews.empty());
  c.come_back(1);
  ASSERT_EQ(c.ear->crews.size(), 1u);
  EXPECT_EQ(c.ear->crews[0].epoch, 2u);
  EXPECT_TRUE(c.ear->crews[0].announced);
  EXPECT_EQ(c.ear->crews[0].reason, told[1].reason);
  EXPECT_EQ(c.ear->crews[0].machines, told[1].machines);
  spare.come_back(0);
  ASSERT_EQ(spare.ear->crews.size(), 2u);
  EXPECT_EQ(spare.ear->crews[0].epoch, 1u);
  EXPECT_FALSE(spare.ear->crews[0].announced);
  EXPECT_EQ(b.come_back(), 0u);
  EXPECT_EQ(job.desk->next_rank(), 4);
}

TEST(DeskRestart, AGoodbyeThatWasHeardNeedNotBeSaidAgain) {
  Job job(2);
  Process a(job, 0), b(job, 1);
  job.desk->leave("secret", a.id, 0, "", -1);
  job.restart();
  EXPECT_EQ(a.come_back(), 0u);
  EXPECT_EQ(a.ear->farewells, 1);
  EXPECT_EQ(a.ear->closes, 1);
  EXPECT_EQ(job.desk->snapshot().members[0].standing, Standing::left);
}

TEST(DeskRestart, AFailureIsToldToThoseWhoComeBack) {
  Job job(2);
  Process a(job, 0), b(job, 1);
  job.desk->leave("secret", b.id, 3, "no memory", -1);
  job.restart();
  EXPECT_EQ(job.desk->snapshot().failures.size(), 1u);
  EXPECT_NE(a.come_back(), 0u);
  ASSERT_EQ(a.ear->notices.size(), 1u);
  EXPECT_HAS(a.ear->notices[0], "no memory");
  job.desk->leave("secret", a.id, 75, "", -1);
  EXPECT_TRUE(job.desk->wait_ended(Deadline(Seconds(0))));
}

/// Its answers are nobody's to rely on.
TEST(DeskRestart, AJournalOlderThanTheJobEndsIt) {
  Job job(2, true);
  Process a(job, 0), b(job, 1);
  for (const Process* each : {&a, &b}) each->confirm(0);
  job.paper->cut_off = true;
  job.desk->disconnected(b.id);
  ASSERT_EQ(a.ear->crews.size(), 1u);
  job.restart();
  a.come_back(1);
  ASSERT_GE(a.ear->notices.size(), 1u);
  EXPECT_HAS(a.ear->notices[0], "has heard of epoch 1, but the journal paper ends at epoch 0");
}

/// A process that tries several times is there once, whichever of its connections is seen first.
TEST(DeskRestart, OfSeveralConnectionsTheLatestCounts) {
  Job job(2);
  Process a(job, 0), b(job, 1);
  b.come_back();
  const auto latest = b.ear;
  Hello late = b.hello;
  late.attempt--;
  const auto stale = std::make_shared<Ear>();
  EXPECT_EQ(job.desk->attend("secret", late, stale), 0u);
  EXPECT_EQ(stale->why.kind, Refused::cancelled);
  EXPECT_EQ(latest->closes, 0);
  job.desk->disconnected(b.id, stale.get());  // not the line that counts
  EXPECT_TRUE(job.desk->snapshot().crew.away.empty());
  job.desk->disconnected(b.id, latest.get());  // it has said nothing yet: it was given up for another one
  EXPECT_EQ(job.desk->snapshot().crew.away, (std::vector<int>{1}));
  EXPECT_TRUE(a.ear->notices.empty());
  EXPECT_NE(b.come_back(), 0u);
  job.desk->heartbeat("secret", b.id);
  job.desk->disconnected(b.id, b.ear.get());
  EXPECT_EQ(a.ear->notices.size(), 1u);
}

/// Where members wait for a coordinator, one whose stream has ended may live on.
TEST(DeskRestart, NewcomersDoNotReplaceACrewThatMayLive) {
  Job job(1, true);
  job.options.patience = Seconds(0.1);
  job.options.membership.heartbeat_limit = Seconds(0.1);
  job.restart();
  Process a(job, 0), spare(job, 1, true);
  a.confirm(0);
  job.desk->ready("secret", spare.id, "m");
  a.confirm(0);
  EXPECT_TRUE(spare.ear->crews.empty());
  job.desk->disconnected(a.id);
  EXPECT_TRUE(spare.ear->crews.empty());
  EXPECT_TRUE(spare.ear->notices.empty());
  std::this_thread::sleep_for(std::chrono::milliseconds(300));
  job.desk->heartbeat("secret", spare.id);
  job.desk->tick(Seconds(0));
  ASSERT_EQ(spare.ear->crews.size(), 1u);
  EXPECT_EQ(spare.ear->crews[0].ranks, (std::vector<int>{1}));
}

/// At the moment in which the journal is written, nobody has heard anything that depends on it.
TEST(DeskRestart, NothingIsSaidBeforeItIsDurable) {
  Job job(2, true);
  Process a(job, 0), b(job, 1);
  for (const Process* each : {&a, &b}) each->confirm(0);
  int writes = 0;
  const auto quiet = [&](const std::function<bool()>& heard) {
    job.paper->before_write = [&writes, heard] {
      writes++;
      EXPECT_FALSE(heard());
    };
  };
  std::string seen;
  job.desk->get("secret", a.id, "key", [&](const auto& answer) { seen = std::get<std::string>(answer); });
  quiet([&] { return !seen.empty(); });
  job.desk->put("secret", b.id, "key", "value");
  EXPECT_EQ(seen, "value");
  quiet([&] { return !a.ear->crews.empty(); });
  job.desk->disconnected(b.id);
  EXPECT_EQ(a.ear->crews.size(), 1u);
  quiet([&] { return a.ear->farewells > 0; });
  job.desk->leave("secret", a.id, 0, "", -1);
  EXPECT_EQ(a.ear->farewells, 1);
  job.paper->before_write = [&] { writes++; };
  job.desk->conclude();
  EXPECT_EQ(writes, 4);
}

/// Threads that put at the same time wait for the disk together, and read back what they wrote.
TEST(DeskRestart, ManyWriteAtOnce) {
  Job job(4);
  std::vector<std::unique_ptr<Process>> all;
  for (int rank = 0; rank < 4; rank++) all.push_back(std::make_unique<Process>(job, rank));
  int writes = 0;
  job.paper->before_write = [&] {
    writes++;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  };
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; t++)
    threads.emplace_back([&, t] {
      for (int i = 0; i < 50; i++) {
        const uint64_t id = all[static_cast<size_t>(t)]->id;
        EXPECT_FALSE(job.desk->put("secret", id, fmt::format("{}/{}", t, i), "x"));
        job.desk->heartbeat("secret", id);
        if (i % 10 == 0) job.desk->tick(Seconds(0));
      }
    });
  for (std::thread& thread : threads) thread.join();
  EXPECT_LE(writes, 200);
  job.paper->before_write = nullptr;
  job.restart();
  EXPECT_EQ(job.desk->snapshot().keys, 200u);
}

/// What a journal's checksums let through by mistake, or somebody has written by hand.
class DamagedJournal {
 public:
  explicit DamagedJournal(journal::Contents good) : good_(std::move(good)) {}

  journal::Contents next() {
    journal::Contents contents = good_;
    for (size_t changes = 1 + below(2); changes > 0; changes--) {
      const auto entry = std::next(contents.begin(), static_cast<std::ptrdiff_t>(below(contents.size())));
      std::string& text = entry->second;
      const uint64_t nasty[] = {0, 1, 0x7fffffff, 0x80000000, ~uint64_t{0}, uint64_t{1} << 63, random_()};
      const uint64_t value = nasty[below(std::size(nasty))];
      const size_t at = below(text.size() + 1), width = std::min<size_t>(size_t{1} << below(4), text.size() - at);
      switch (below(8)) {
        case 0:
          text.resize(at);
          break;
        case 1:
          text.insert(at, below(5), static_cast<char>(random_()));
          break;
        case 2:
          contents.emplace(entry->first.substr(0, below(entry->first.size() + 1)) + "x", text);
          break;
        case 3:
          contents.erase(entry);
          break;
        default:
          std::memcpy(text.data() + at, &value, width);
      }
      if (contents.empty()) break;
    }
    return contents;
  }

 private:
  size_t below(size_t n) { return n == 0 ? 0 : random_() % n; }
  const journal::Contents good_;
  std::mt19937_64 random_{20261119};
};

TEST(DeskImageFuzz, ADamagedJournalIsAnImageOrIsRefusedByName) {
  Job job(3, true);
  Process a(job, 0), b(job, 1), c(job, 2);
  for (const Process* each : {&a, &b, &c}) each->confirm(0);
  job.desk->put("secret", a.id, "key", "value");
  job.desk->leave("secret", b.id, 1, "it broke", 1);
  job.desk->disconnected(b.id);
  a.confirm(1);
  DamagedJournal damaged(job.paper->contents);
  size_t taken = 0, refused = 0;
  for (int i = 0; i < 100'000; i++) {
    job.paper->contents = damaged.next();
    try {
      const PaperJournal journal(job.paper);
      if (image_of(journal)) taken++;
    } catch (const Corruption& error) {
      refused++;
      ASSERT_HAS(error.what(), "the journal paper is no coordinator's of this version");
    }
  }
  EXPECT_GT(taken, 10'000u);
  EXPECT_GT(refused, 10'000u);
}

}  // namespace
}  // namespace trireme::cluster::tests
