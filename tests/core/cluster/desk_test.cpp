// label: unit
// The coordinator without its network: many threads, limits, exactly one answer per get.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <atomic>
#include <mutex>
#include <thread>

#include <trireme/cluster/coordination/desk.h>

namespace trireme::cluster::tests {
namespace {

struct Recorder final : Line {
  void welcome(const Welcome& welcome) override {
    id = welcome.member;
    servers = welcome.servers;
    warnings = welcome.warnings;
  }
  void placed(const Member& member) override { rank = member.rank; }
  void heartbeat(const std::string& /*waiting*/) override { heartbeats++; }
  void notice(const Failure& failure) override { notices++, rank_of_failure = failure.rank; }
  void crew(const CrewChange& change) override { crews.push_back(change); }
  void dismissed(const std::string& reason) override { dismissal = reason; }
  void more(int workers) override { called += workers; }
  void farewell() override { farewells++; }
  void close(const std::optional<Refusal>& refusal) override {
    closes++;
    if (refusal) text = refusal->text;
  }
  // The desk calls under its lock; the test reads after joining threads or from the same thread.
  uint64_t id = 0;
  int called = 0, servers = 0, rank = -1, heartbeats = 0, notices = 0, rank_of_failure = -1, farewells = 0, closes = 0;
  std::string text, dismissal;
  std::vector<std::string> warnings;
  std::vector<CrewChange> crews;
};

DeskOptions options_for(int ranks) {
  DeskOptions options;
  options.job = "job";
  options.token = "secret";
  options.host = "a";
  options.version = "1";
  options.membership = {ranks, Seconds(1000), {}, 4096};
  return options;
}

double wall_clock() { return Seconds(std::chrono::system_clock::now().time_since_epoch()).count(); }

Hello hello_of(int rank, const std::string& host = "b") {
  return {"job", "1", {Member::worker, rank, 0, 0, host, 7}, "10.0.0.1", wall_clock()};
}

struct Seat {
  std::shared_ptr<Recorder> line = std::make_shared<Recorder>();
  uint64_t id = 0;
  Seat(Desk& desk, int rank) { id = desk.attend("secret", hello_of(rank), line); }
};

TEST(Desk, RefusesWithoutTheToken) {
  Desk desk(options_for(1));
  const auto line = std::make_shared<Recorder>();
  for (const char* token : {"", "secre", "secret ", "Secret"}) EXPECT_EQ(desk.attend(token, hello_of(0), line), 0u);
  EXPECT_EQ(line->closes, 4);
  EXPECT_EQ(desk.snapshot().epoch, 0u);
}

TEST(Desk, RefusesOtherVersionsAndJobs) {
  Desk desk(options_for(1));
  const auto line = std::make_shared<Recorder>();
  Hello hello = hello_of(0);
  hello.version = "2";
  EXPECT_EQ(desk.attend("secret", hello, line), 0u);
  EXPECT_EQ(line->text,
            "refuses: host b runs trireme 2, the coordinator on host a runs 1: install the same version on all hosts");
  hello = hello_of(0);
  hello.job = "other";
  EXPECT_EQ(desk.attend("secret", hello, line), 0u);
  EXPECT_EQ(line->text, "serves job 'job', not 'other': start one coordinator per job, with another --port");
  hello = hello_of(0, "b\x1b[2J");
  EXPECT_EQ(desk.attend("secret", hello, line), 0u);
  EXPECT_EQ(line->text.find('\x1b'), std::string::npos);
}

TEST(Desk, WarnsOfAClockThatIsOff) {
  Desk desk(options_for(2));
  EXPECT_TRUE(Seat(desk, 0).line->warnings.empty());
  const auto line = std::make_shared<Recorder>();
  Hello hello = hello_of(1);
  hello.wall_clock += 60;
  EXPECT_NE(desk.attend("secret", hello, line), 0u);
  ASSERT_EQ(line->warnings.size(), 1u);
  EXPECT_NE(line->warnings[0].find("ahead of"), std::string::npos);
}

TEST(Desk, FailureReachesEverybodyAndEveryGet) {
  Desk desk(options_for(3));
  Seat a(desk, 0), b(desk, 1), c(desk, 2);
  int refused = 0;
  desk.get("secret", a.id, "key",
           [&](const auto& answer) { refused += std::get<Refusal>(answer).kind == Refused::failed; });
  desk.leave("secret", c.id, 0, "", -1);
  EXPECT_EQ(c.line->farewells, 1);
  EXPECT_EQ(a.line->notices, 0);
  desk.disconnected(b.id);
  EXPECT_EQ(refused, 1);
  EXPECT_EQ(a.line->notices, 1);
  EXPECT_EQ(a.line->rank_of_failure, 1);
  EXPECT_EQ(c.line->notices, 0);
  EXPECT_EQ(desk.put("secret", a.id, "x", "y")->kind, Refused::failed);
  EXPECT_EQ(Seat(desk, 1).id, 0u);
  EXPECT_FALSE(desk.wait_ended(Deadline(Seconds(0))));
  desk.leave("secret", a.id, 75, "", -1);
  EXPECT_TRUE(desk.wait_ended(Deadline(Seconds(0))));
  EXPECT_EQ(desk.snapshot().failures.size(), 1u);
}

TEST(Desk, ALostRankChangesTheCrewWhereThePolicySaysSo) {
  DeskOptions options = options_for(4);
  options.membership.on_loss = OnLoss::change_crew;
  Desk desk(options);
  Seat a(desk, 0), b(desk, 1), c(desk, 2), d(desk, 3);
  int answered = 0;
  desk.get("secret", a.id, "key", [&](const auto&) { answered++; });
  desk.disconnected(b.id);
  for (const Seat* seat : {&a, &c, &d}) {
    EXPECT_EQ(seat->line->notices, 0);
    ASSERT_EQ(seat->line->crews.size(), 1u);
    EXPECT_EQ(seat->line->crews[0].epoch, 1u);
    EXPECT_EQ(seat->line->crews[0].ranks, (std::vector<int>{0, 2, 3}));
    EXPECT_NE(seat->line->crews[0].reason.find("rank 1 on host b"), std::string::npos);
  }
  EXPECT_EQ(answered, 0);                              // whoever waits goes on waiting
  desk.leave("secret", d.id, 3, "out of memory", -1);  // an error of its own is a loss, too
  ASSERT_EQ(a.line->crews.size(), 2u);
  EXPECT_EQ(a.line->crews[1].epoch, 2u);
  EXPECT_EQ(a.line->crews[1].ranks, (std::vector<int>{0, 2}));
  EXPECT_FALSE(desk.put("secret", c.id, "key", "value"));
  EXPECT_EQ(answered, 1);
  for (const Seat* seat : {&a, &c}) desk.leave("secret", seat->id, 0, "", -1);
  EXPECT_EQ(a.line->crews.size(), 2u);  // who has done its part changes nothing
  EXPECT_TRUE(desk.wait_ended(Deadline(Seconds(0))));
  EXPECT_TRUE(desk.snapshot().failures.empty());
}

TEST(Desk, ARankThatIsLostBeforeAllHaveComeEndsTheJobAllTheSame) {
  DeskOptions options = options_for(3);
  options.membership.on_loss = OnLoss::change_crew;
  Desk desk(options);
  Seat a(desk, 0), b(desk, 1);
  desk.disconnected(b.id);
  EXPECT_EQ(a.line->notices, 1);
  EXPECT_TRUE(a.line->crews.empty());
}

TEST(Desk, ALostServerEndsTheJobAllTheSame) {
  DeskOptions options = options_for(1);
  options.membership.on_loss = OnLoss::change_crew;
  options.membership.servers = 1;
  Desk desk(options);
  Seat a(desk, 0);
  const auto line = std::make_shared<Recorder>();
  Hello hello = hello_of(0);
  hello.member.kind = Member::server;
  const uint64_t server = desk.attend("secret", hello, line);
  ASSERT_NE(server, 0u);
  desk.disconnected(server);
  EXPECT_EQ(a.line->notices, 1);
  EXPECT_TRUE(a.line->crews.empty());
}

TEST(Desk, WhoGaveUpIsNotTheCause) {
  Desk desk(options_for(2));
  Seat a(desk, 0), b(desk, 1);
  desk.leave("secret", a.id, 75, "lost rank 1", -1);
  EXPECT_EQ(a.line->farewells, 1);
  EXPECT_EQ(b.line->notices, 0);
  desk.heartbeat("secret", a.id);
  desk.disconnected(a.id);
  EXPECT_TRUE(desk.snapshot().failures.empty());
  desk.disconnected(b.id);
  ASSERT_EQ(desk.snapshot().failures.size(), 1u);
  EXPECT_EQ(desk.snapshot().failures[0].rank, 1);
  EXPECT_TRUE(desk.snapshot().ended);
}

metrics::Snapshot counted(double updates) {
  return metrics::Snapshot({{.name = "updates", .unit = "updates", .value = updates}});
}

TEST(Desk, KeepsTheLastMetricsOfEveryMember) {
  Desk desk(options_for(2));
  Seat a(desk, 0), b(desk, 1);
  EXPECT_TRUE(desk.counted().empty());
  desk.heartbeat("secret", a.id, counted(1).encode());
  desk.heartbeat("secret", b.id, counted(5).encode());
  desk.heartbeat("secret", a.id, counted(2).encode());
  for (const std::string& wrong : {std::string(), std::string("nonsense"), counted(3).encode().substr(1),
                                   std::string(MetricsNews::kMostBytes + 1, 'x')})
    desk.heartbeat("secret", a.id, wrong);
  desk.heartbeat("wrong", a.id, counted(4).encode());
  desk.heartbeat("secret", 99, counted(4).encode());
  desk.leave("secret", b.id, 0, "", -1);
  const auto all = desk.counted();
  ASSERT_EQ(all.size(), 2u) << "who has left is still known";
  EXPECT_EQ(all[0].member.rank, 0);
  EXPECT_EQ(all[0].snapshot.total("updates").value, 2);
  EXPECT_EQ(all[0].job, job_id("job/secret"));
  EXPECT_EQ(all[1].snapshot.total("updates").value, 5);
  EXPECT_EQ(a.line->heartbeats, 6) << "one that cannot be read is a sign of life all the same";
}

TEST(MetricsNews, AreToldOnceASecondAndWhenTheyChange) {
  double updates = 0;
  int looked = 0;
  MetricsNews news([&] { return looked++, counted(updates); });
  Clock::time_point now{std::chrono::hours(1)};
  EXPECT_EQ(news.next(now), counted(0).encode());
  updates = 1;
  EXPECT_EQ(news.next(now + std::chrono::milliseconds(999)), "");
  EXPECT_EQ(looked, 1) << "between two, nobody looks";
  EXPECT_EQ(news.next(now += std::chrono::seconds(1)), counted(1).encode());
  EXPECT_EQ(news.next(now += std::chrono::seconds(5)), "") << "nothing has changed";
  updates = 2;
  EXPECT_EQ(news.next(now += std::chrono::milliseconds(1)), counted(2).encode());
  updates = 3;
  EXPECT_EQ(news.next(now, true), counted(3).encode()) << "a last word does not wait";
  EXPECT_EQ(news.next(now, true), "");
  EXPECT_EQ(MetricsNews(nullptr).next(now), "");
}

TEST(Desk, AfterAPeacefulEndTheNextBeginAnew) {
  Desk desk(options_for(1));
  Seat first(desk, 0);
  desk.put("secret", first.id, "address", "old");
  desk.leave("secret", first.id, 0, "", -1);
  EXPECT_TRUE(desk.snapshot().ended);
  const uint64_t epoch = desk.snapshot().epoch;
  Seat second(desk, 0);
  EXPECT_NE(second.id, 0u);
  EXPECT_EQ(desk.snapshot().keys, 0u);
  EXPECT_GT(desk.snapshot().epoch, epoch);
  EXPECT_EQ(desk.put("secret", first.id, "x", "y")->kind, Refused::argument);  // the old one is out
}

TEST(Desk, ComingAndGoingDoesNotFillTheBooks) {
  DeskOptions options = options_for(2);
  options.limits.members = options.membership.most_members = 8;
  Desk desk(std::move(options));
  Seat stays(desk, 0);
  uint64_t epoch = 0;
  for (int i = 0; i < 100; i++) {
    Seat seat(desk, 1);
    ASSERT_NE(seat.id, 0u);
    desk.leave("secret", seat.id, 0, "", -1);
    ASSERT_GT(desk.snapshot().epoch, epoch);
    epoch = desk.snapshot().epoch;
  }
  EXPECT_LE(desk.snapshot().members.size(), 9u);
}

TEST(Desk, LimitsHold) {
  DeskOptions options = options_for(1);
  options.limits = {.message_bytes = 1 << 20,
                    .key_bytes = 4,
                    .value_bytes = 10,
                    .keys = 2,
                    .total_bytes = 20,
                    .members = 1,
                    .waiting = 1};
  Desk desk(std::move(options));
  Seat a(desk, 0);
  const auto kind = [&](const char* key, size_t bytes) {
    return desk.put("secret", a.id, key, std::string(bytes, 'x'));
  };
  EXPECT_EQ(kind("", 1)->kind, Refused::limit);
  EXPECT_EQ(kind("abcde", 1)->kind, Refused::limit);
  EXPECT_EQ(kind("a", 11)->kind, Refused::limit);
  EXPECT_FALSE(kind("a", 10));
  EXPECT_EQ(kind("b", 10)->kind, Refused::limit);  // total
  EXPECT_FALSE(kind("b", 8));
  EXPECT_EQ(kind("c", 0)->kind, Refused::limit);  // keys
  EXPECT_FALSE(kind("a", 1));
  EXPECT_FALSE(kind("b", 10));
  int refused = 0;
  const auto count = [&](const auto& answer) { refused += std::holds_alternative<Refusal>(answer); };
  const uint64_t ticket = desk.get("secret", a.id, "z", count);
  desk.get("secret", a.id, "y", count);
  EXPECT_EQ(refused, 1);
  desk.cancel(ticket);
  desk.cancel(ticket);
  EXPECT_EQ(refused, 2);
}

TEST(Desk, SilenceIsNoticedUnlessTheDeskItselfWasAway) {
  DeskOptions options = options_for(1);
  options.membership.heartbeat_limit = Seconds(0.05);
  Desk desk(std::move(options));
  Seat a(desk, 0);
  std::this_thread::sleep_for(std::chrono::milliseconds(100));
  desk.tick(Seconds(10));
  EXPECT_TRUE(desk.snapshot().failures.empty());
  std::this_thread::sleep_for(std::chrono::milliseconds(100));
  desk.tick(Seconds(0));
  EXPECT_EQ(desk.snapshot().failures.size(), 1u);
}

TEST(Desk, EveryGetIsAnsweredOnceWhateverHappens) {
  for (int round = 0; round < 20; round++) {
    Desk desk(options_for(4));
    std::vector<Seat> seats;
    for (int rank = 0; rank < 4; rank++) seats.emplace_back(desk, rank);
    constexpr int kGets = 200;
    std::atomic<int> answers = 0;
    std::vector<std::thread> threads;
    for (int t = 0; t < 4; t++)
      threads.emplace_back([&, t] {
        const uint64_t id = seats[static_cast<size_t>(t)].id;
        for (int i = 0; i < kGets; i++) {
          const std::string key = std::to_string((i * 7 + t * 13) % kGets);
          const uint64_t ticket = desk.get("secret", id, key, [&](const auto&) { answers++; });
          if (i % 3 == 0) desk.cancel(ticket);
          desk.put("secret", id, std::to_string(i), "value");
          desk.heartbeat("secret", id);
          if (t == 3 && i == kGets / 2 && round % 2 == 0) desk.disconnected(id);
          if (t == 0) desk.snapshot(), desk.take_events();
        }
      });
    for (std::thread& thread : threads) thread.join();
    desk.close();
    EXPECT_EQ(answers, 4 * kGets);
  }
}

TEST(Desk, ServersComeAndGoBesideTheRanks) {
  DeskOptions options = options_for(1);
  options.membership.servers = 2;
  Desk desk(options);
  const auto serve = [&](int index) {
    Hello hello = hello_of(index);
    hello.member.kind = Member::server;
    auto line = std::make_shared<Recorder>();
    desk.attend("secret", hello, line);
    return line;
  };
  const auto first = serve(-1);
  EXPECT_EQ(first->rank, 0);
  EXPECT_EQ(first->servers, 2);
  Seat rank(desk, -1);
  EXPECT_EQ(rank.line->rank, 0);  // though a server is missing
  EXPECT_FALSE(desk.snapshot().complete);
  const auto second = serve(-1);
  EXPECT_EQ(second->rank, 1);
  EXPECT_TRUE(desk.snapshot().complete);
  EXPECT_EQ(serve(-1)->closes, 1);  // one too many

  desk.put("secret", first->id, "where", "here");
  std::string seen;
  desk.get("secret", rank.id, "where", [&](const auto& answer) { seen = std::get<std::string>(answer); });
  EXPECT_EQ(seen, "here");

  desk.leave("secret", first->id, 0, "", -1);
  EXPECT_TRUE(desk.snapshot().failures.empty());
  desk.disconnected(second->id);
  EXPECT_EQ(rank.line->notices, 1);
  EXPECT_EQ(rank.line->rank_of_failure, -1);
  ASSERT_EQ(desk.snapshot().failures.size(), 1u);
  EXPECT_EQ(desk.snapshot().failures[0].reason.find("server 1 on host b (process 7) is gone"), 0u)
      << desk.snapshot().failures[0].reason;
}

TEST(Desk, AnAgentNamesAServerOnlyIfThereIsOne) {
  DeskOptions options = options_for(1);
  options.membership.servers = 1;
  for (const int server : {0, 1, -2}) {
    Desk desk(options);
    Hello hello = hello_of(0);
    hello.member.kind = Member::agent;
    hello.member.slots = 1;
    const auto line = std::make_shared<Recorder>();
    desk.attend("secret", hello, line);
    desk.leave("secret", line->id, 137, "killed", -1, server);
    const std::string reason = desk.snapshot().failures.at(0).reason;
    EXPECT_EQ(reason, server == 0 ? "server 0 on host b failed with exit code 137: killed"
                                  : "the agent of host b (process 7) failed with exit code 137: killed");
  }
}

// ---- crews ----

DeskOptions elastic(int ranks, int least = 1, Seconds rejoin_timeout = Seconds(0)) {
  DeskOptions options = options_for(ranks);
  options.membership.on_loss = OnLoss::change_crew;
  options.membership.least = least;
  options.membership.most = ranks + 2;
  options.membership.rejoin_timeout = rejoin_timeout;
  return options;
}

/// A newcomer that is ready, on machine "m".
struct Newcomer {
  std::shared_ptr<Recorder> line = std::make_shared<Recorder>();
  uint64_t id = 0;
  Newcomer(Desk& desk, int rank) {
    Hello hello = hello_of(rank);
    hello.member.newcomer = true;
    id = desk.attend("secret", hello, line);
    if (id != 0) desk.ready("secret", id, "m");
  }
};

void confirm(Desk& desk, uint64_t epoch, std::initializer_list<uint64_t> members) {
  for (uint64_t id : members) desk.confirm("secret", id, epoch, "m");
}

TEST(DeskCrews, ANewcomerIsAnnouncedWithItsMachine) {
  Desk desk(elastic(2));
  Seat a(desk, 0), b(desk, 1);
  EXPECT_EQ(desk.set_target(5), "the job was started for 1 to 4 workers, not for 5");
  EXPECT_EQ(desk.set_target(3), "");
  const Newcomer c(desk, 2);
  EXPECT_TRUE(a.line->crews.empty());  // not all have said that they are in the first crew
  confirm(desk, 0, {a.id, b.id});
  ASSERT_EQ(c.line->crews.size(), 1u);
  const CrewChange& crew = a.line->crews.at(0);
  EXPECT_TRUE(crew.announced);
  EXPECT_EQ(crew.ranks, (std::vector<int>{0, 1, 2}));
  EXPECT_EQ(crew.machines, (std::vector<int>{0, 0, 0}));
  EXPECT_EQ(crew.reason, "rank 2 comes in");
  EXPECT_FALSE(desk.snapshot().crew.settled);
  confirm(desk, 1, {a.id, b.id, c.id});
  EXPECT_TRUE(desk.snapshot().crew.settled);
  EXPECT_EQ(describe(desk.snapshot().crew), "epoch 1: ranks 0, 1, 2 row; 3 wanted, at least 1 and at most 4");
}

TEST(DeskCrews, NumbersAreNeverUsedTwice) {
  Desk desk(elastic(2));
  Seat a(desk, 0), b(desk, 1);
  EXPECT_EQ(desk.next_rank(), 2);
  const Newcomer next(desk, -1);
  EXPECT_EQ(next.line->rank, 3);
  const Newcomer c(desk, 2);
  EXPECT_NE(c.id, 0u);
  desk.disconnected(c.id);
  for (int rank : {0, 1, 2, 3}) {
    const Newcomer again(desk, rank);
    EXPECT_EQ(again.id, 0u);
    EXPECT_NE(again.line->text.find(fmt::format("rank {} is taken", rank)), std::string::npos) << again.line->text;
  }
  desk.disconnected(b.id);
  const Seat back(desk, 1);
  EXPECT_EQ(back.id, 0u);
  EXPECT_NE(back.line->text.find("does not come as a newcomer"), std::string::npos) << back.line->text;
  EXPECT_EQ(Newcomer(desk, 1 << 16).id, 0u);
}

TEST(DeskCrews, AJobWhoseCrewDoesNotChangeTakesNoNewcomers) {
  Desk desk(options_for(1));
  const Seat a(desk, 0);
  const Newcomer b(desk, 1);
  EXPECT_EQ(b.id, 0u);
  EXPECT_NE(b.line->text.find("the crew of this job does not change"), std::string::npos) << b.line->text;
  EXPECT_NE(desk.set_target(2), "");
  EXPECT_NE(desk.drain(0), "");
}

TEST(DeskCrews, SparesGoWhenTheWorkIsDone) {
  Desk desk(elastic(2));
  Seat a(desk, 0), b(desk, 1);
  confirm(desk, 0, {a.id, b.id});
  const Newcomer spare(desk, 2), drained(desk, 3);
  EXPECT_EQ(desk.snapshot().crew.spares, (std::vector<int>{2, 3}));
  EXPECT_EQ(desk.drain(3), "");
  EXPECT_NE(drained.line->dismissal, "");
  desk.leave("secret", a.id, 0, "", -1);
  EXPECT_EQ(spare.line->dismissal, "");
  desk.leave("secret", b.id, 0, "", -1);
  EXPECT_EQ(spare.line->dismissal, "the job is over: the crew has done its work");
  EXPECT_FALSE(desk.wait_ended(Deadline(Seconds(0))));
  const Newcomer late(desk, 4);
  EXPECT_EQ(late.id, 0u);
  EXPECT_NE(late.line->text.find("a job that is over"), std::string::npos);
  for (uint64_t id : {spare.id, drained.id}) desk.leave("secret", id, 0, "", -1);
  EXPECT_TRUE(desk.wait_ended(Deadline(Seconds(0))));
}

TEST(DeskCrews, TooFewWaitThenSaveAndThenTheJobFails) {
  Desk desk(elastic(2, 2, Seconds(0.01)));
  Seat a(desk, 0), b(desk, 1);
  desk.disconnected(b.id);
  ASSERT_EQ(a.line->crews.size(), 1u);
  EXPECT_TRUE(a.line->crews[0].ranks.empty());
  EXPECT_TRUE(desk.snapshot().crew.waiting);
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  desk.tick(Seconds(0));
  ASSERT_EQ(a.line->crews.size(), 2u);
  EXPECT_TRUE(a.line->crews[1].closing);
  EXPECT_EQ(a.line->crews[1].ranks, (std::vector<int>{0}));
  EXPECT_EQ(a.line->crews[1].lost, (std::vector<int>{1}));
  EXPECT_TRUE(desk.snapshot().crew.closing);
  confirm(desk, 2, {a.id});
  EXPECT_TRUE(desk.snapshot().failures.empty());
  desk.leave("secret", a.id, 0, "", -1);
  EXPECT_NE(desk.snapshot().failures.at(0).reason.find("1 worker is left, and the job needs at least 2"),
            std::string::npos);
}

TEST(DeskCrews, AJobThatIsToStopWaitsForNobody) {
  Desk desk(elastic(2, 2, Seconds(600)));
  Seat a(desk, 0), b(desk, 1);
  desk.disconnected(b.id);
  EXPECT_TRUE(desk.snapshot().crew.waiting);
  desk.hurry("The job was interrupted");
  EXPECT_TRUE(desk.snapshot().crew.closing);
  EXPECT_NE(a.line->crews.back().reason.find("at least 2. The job was interrupted. Start more"), std::string::npos)
      << a.line->crews.back().reason;
  EXPECT_FALSE(desk.snapshot().crew.waiting);
}

/// Those who go in a change that follows a loss are not lost.
TEST(DeskCrews, AChangeNamesWhoWasLostAndNotWhoGoes) {
  Desk desk(elastic(3));
  Seat a(desk, 0), b(desk, 1), c(desk, 2);
  desk.drain(2);  // announced when all are in the crew
  desk.disconnected(b.id);
  ASSERT_EQ(a.line->crews.size(), 1u);
  EXPECT_EQ(a.line->crews[0].ranks, (std::vector<int>{0}));
  EXPECT_EQ(a.line->crews[0].lost, (std::vector<int>{1}));
}

TEST(DeskCrews, WhatOldCrewsHaveToldOneAnotherIsForgotten) {
  Desk desk(elastic(3));
  Seat a(desk, 0), b(desk, 1), c(desk, 2);
  for (const char* key : {"epoch 0/x", "epoch 1/x", "epoch 10/x", "leader/0"}) desk.put("secret", a.id, key, "1");
  desk.disconnected(b.id);
  EXPECT_EQ(desk.snapshot().keys, 4u);
  desk.disconnected(c.id);
  EXPECT_EQ(desk.snapshot().keys, 3u);  // the crew is that of epoch 2
}

// ---- agents of a crew that changes ----

/// With a slot for each of its first workers; they are on the same host.
struct Agent {
  std::shared_ptr<Recorder> line = std::make_shared<Recorder>();
  uint64_t id = 0;
  Agent(Desk& desk, int first, int slots, const std::string& host, const std::string& address) {
    id = desk.attend("secret", {"job", "1", {Member::agent, first, 0, slots, host, 7}, address, wall_clock()}, line);
  }
};

/// A worker that connects from that address.
struct Worker {
  std::shared_ptr<Recorder> line = std::make_shared<Recorder>();
  uint64_t id = 0;
  Worker(Desk& desk, int rank, const std::string& address, bool newcomer = false) {
    Hello hello = hello_of(rank);
    hello.address = address;
    hello.member.newcomer = newcomer;
    id = desk.attend("secret", hello, line);
    if (newcomer) desk.ready("secret", id, "m");
  }
};

TEST(DeskCrews, MissingWorkersAreAskedOfTheAgentsThatHaveTheFewest) {
  Desk desk(elastic(4));
  const Agent a(desk, 0, 2, "a", "10.0.0.1"), b(desk, 2, 2, "b", "10.0.0.2");
  desk.call_for_workers();
  EXPECT_EQ(a.line->called + b.line->called, 0);  // not all have come
  const Worker w0(desk, 0, "10.0.0.1"), w1(desk, 1, "10.0.0.1"), w2(desk, 2, "10.0.0.2"), w3(desk, 3, "10.0.0.2");
  confirm(desk, 0, {w0.id, w1.id, w2.id, w3.id});
  desk.call_for_workers();
  EXPECT_EQ(a.line->called + b.line->called, 0);
  desk.disconnected(w3.id);
  confirm(desk, 1, {w0.id, w1.id, w2.id});
  desk.call_for_workers();
  EXPECT_EQ(a.line->called, 0);
  EXPECT_EQ(b.line->called, 1);
  desk.call_for_workers();  // it is on its way
  EXPECT_EQ(b.line->called, 1);
  EXPECT_EQ(desk.set_target(6), "");
  desk.call_for_workers();
  EXPECT_EQ(a.line->called, 1);
  EXPECT_EQ(b.line->called, 2);
  const Worker w4(desk, -1, "10.0.0.2", true), w5(desk, -1, "10.0.0.2", true), w6(desk, -1, "10.0.0.1", true);
  desk.call_for_workers();
  EXPECT_EQ(a.line->called + b.line->called, 3);
  desk.disconnected(w4.id);
  desk.disconnected(b.id);  // with its host
  desk.call_for_workers();
  EXPECT_EQ(a.line->called, 2);
  EXPECT_EQ(b.line->called, 2);
}

/// It would be asked for workers, in vain.
TEST(DeskCrews, AnAgentThatIsRefusedChangesNoTarget) {
  Desk desk(elastic(1));
  const Agent a(desk, 0, 1, "a", "10.0.0.1");
  const Worker worker(desk, 0, "10.0.0.1");
  EXPECT_EQ(desk.snapshot().crew.target, 1);
  const Agent refused(desk, -1, 1 << 20, "b", "10.0.0.2");
  EXPECT_EQ(refused.id, 0u);
  EXPECT_EQ(desk.snapshot().crew.target, 1);
  const Agent more(desk, -1, 2, "c", "10.0.0.3");
  EXPECT_EQ(desk.snapshot().crew.target, 3);
}

TEST(DeskCrews, AgentsHearThatTheWorkIsDone) {
  Desk desk(elastic(1));
  const Agent a(desk, 0, 1, "a", "10.0.0.1");
  const Worker worker(desk, 0, "10.0.0.1");
  const Agent late(desk, -1, 1, "c", "10.0.0.3");
  EXPECT_EQ(late.line->rank, 1);
  EXPECT_EQ(late.line->dismissal, "");
  desk.leave("secret", worker.id, 0, "", -1);
  for (const Agent* agent : {&a, &late})
    EXPECT_EQ(agent->line->dismissal, "the job is over: the crew has done its work");
  const Agent later(desk, -1, 1, "d", "10.0.0.4");
  EXPECT_EQ(later.id, 0u);
  EXPECT_NE(later.line->text.find("a job that is over"), std::string::npos) << later.line->text;
}

}  // namespace
}  // namespace trireme::cluster::tests
