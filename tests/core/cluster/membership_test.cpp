// label: unit
// Who belongs to a job: pure functions, so the clock is a number and members are made up.
#include <gtest/gtest.h>

#include <limits>
#include <random>
#include <set>

#include <trireme/cluster/coordination/membership.h>
#include <trireme/cluster/launching/launcher.h>

namespace trireme::cluster::tests {
namespace {

const Clock::time_point kStart{};

Clock::time_point at(double seconds) { return kStart + std::chrono::duration_cast<Clock::duration>(Seconds(seconds)); }

Member worker(const std::string& host, int rank = -1, int pid = 1) { return {Member::worker, rank, 0, 0, host, pid}; }
Member agent(const std::string& host, int slots = 0, int rank = -1) { return {Member::agent, rank, 0, slots, host, 1}; }

Member server(const std::string& host, int index = -1, int pid = 1) { return {Member::server, index, 0, 0, host, pid}; }

MembershipOptions options_for(int ranks, std::vector<std::pair<std::string, int>> hosts = {}) {
  return {ranks, Seconds(3), std::move(hosts), 4096};
}

/// A job's books, filled as the coordinator fills them.
struct Books {
  MembershipOptions options;
  std::vector<Attendee> attendees;

  std::string add(const Member& member, const std::string& address = "") {
    const Admission admission = admit(member, address, attendees, options);
    if (!admission.refusal.empty()) return admission.refusal;
    attendees.push_back({attendees.size() + 1, admission.member, address, Standing::present, kStart});
    const std::vector<int> ranks = assign(attendees, options);
    for (size_t i = 0; i < ranks.size(); i++) attendees[i].member.rank = ranks[i];
    return "";
  }
  std::vector<int> ranks() const {
    std::vector<int> result;
    for (const Attendee& attendee : attendees) result.push_back(attendee.member.rank);
    return result;
  }
  Decision decide(double now) {
    const Decision decision = judge(at(now), attendees, options);
    for (const Departure& departure : decision.departures) attendees[departure.id - 1].standing = departure.standing;
    return decision;
  }
};

bool has(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

TEST(Policy, SaysWhetherALostRankIsTheEndOfTheJob) {
  for (const OnLoss policy : {OnLoss::end_job, OnLoss::change_crew}) {
    const bool ends = policy == OnLoss::end_job;
    Books books{options_for(3)};
    books.options.on_loss = policy;
    for (int rank : {0, 1, 2}) books.add(worker("a", rank));
    books.attendees[1].connected = false;
    const Decision decision = books.decide(1);
    ASSERT_EQ(decision.departures.size(), 1u);
    EXPECT_EQ(decision.departures[0].standing, Standing::lost);
    EXPECT_EQ(decision.departures[0].failure.has_value(), ends);
    EXPECT_TRUE(has(decision.departures[0].reason, "rank 1 on host a"));
    EXPECT_FALSE(decision.ended);
    books.attendees[2].exit_code = kPeerLostExit;  // does not go on without rank 1
    const Decision next = books.decide(1);
    ASSERT_EQ(next.departures.size(), 1u);
    EXPECT_EQ(next.departures[0].standing, ends ? Standing::left : Standing::lost);
    EXPECT_FALSE(next.departures[0].failure);
    books.attendees[0].exit_code = 0;
    const Decision last = books.decide(2);
    EXPECT_EQ(last.departures[0].standing, Standing::left);
    EXPECT_TRUE(last.ended);
  }
}

TEST(Membership, OwnRanksAreKept) {
  Books books{options_for(3)};
  for (int rank : {2, 0, 1}) EXPECT_EQ(books.add(worker("a", rank)), "");
  EXPECT_EQ(books.ranks(), (std::vector{2, 0, 1}));
  EXPECT_TRUE(books.decide(0).complete);
}

TEST(Membership, RanksAreAssignedWhenAllAreThereAndNeighboursPerHost) {
  Books books{options_for(4)};
  for (const char* host : {"b", "a", "b"}) EXPECT_EQ(books.add(worker(host)), "");
  EXPECT_EQ(books.ranks(), (std::vector{-1, -1, -1}));
  EXPECT_EQ(books.decide(0).reason, "3 of 4 ranks have registered");
  EXPECT_EQ(books.add(worker("a")), "");
  EXPECT_EQ(books.ranks(), (std::vector{0, 2, 1, 3}));
  EXPECT_EQ(books.decide(0).reason, "all 4 ranks have registered");
}

TEST(Membership, WorkersFollowTheHostList) {
  Books books{options_for(3, {{"a", 1}, {"b", 2}})};
  for (const char* host : {"b", "a.example.com", "b"}) EXPECT_EQ(books.add(worker(host)), "");
  EXPECT_EQ(books.ranks(), (std::vector{1, 0, 2}));
}

TEST(Membership, AssignedRanksGoAroundOwnOnes) {
  Books books{options_for(4)};
  books.add(worker("a", 1));
  for (const char* host : {"b", "c", "b"}) EXPECT_EQ(books.add(worker(host)), "");
  EXPECT_EQ(books.ranks(), (std::vector{1, 0, 3, 2}));
}

TEST(Membership, AgentsOfTheListGetTheirRanksAtOnce) {
  Books books{options_for(5, {{"a", 2}, {"10.0.0.2", 1}, {"c", 2}})};
  EXPECT_EQ(books.add(agent("c.example.com")), "");
  EXPECT_EQ(books.ranks(), (std::vector{3}));
  EXPECT_EQ(books.attendees[0].member.slots, 2);
  EXPECT_FALSE(books.decide(0).complete);
  EXPECT_EQ(books.decide(0).reason, "2 of 5 ranks have registered; ranks 0, 1 and 2 have not");
  EXPECT_EQ(books.add(agent("b", 1), "10.0.0.2"), "");  // the list has its address
  EXPECT_EQ(books.add(agent("a")), "");
  EXPECT_EQ(books.ranks(), (std::vector{3, 2, 0}));
  EXPECT_TRUE(books.decide(0).complete);
}

TEST(Membership, AListMayNameAHostTwice) {
  Books books{options_for(3, {{"a", 1}, {"a", 2}})};
  EXPECT_EQ(books.add(agent("a")), "");
  EXPECT_EQ(books.add(agent("a")), "");
  EXPECT_EQ(books.ranks(), (std::vector{0, 1}));
  EXPECT_TRUE(has(books.add(agent("a")), "has joined before host a"));
}

TEST(Membership, AgentsWithoutAListGetRanksInTheOrderOfRegistration) {
  Books books{options_for(5)};
  EXPECT_EQ(books.add(agent("b", 2)), "");
  EXPECT_EQ(books.ranks(), (std::vector{-1}));
  EXPECT_EQ(books.add(agent("a", 3)), "");
  EXPECT_EQ(books.ranks(), (std::vector{0, 2}));
  EXPECT_TRUE(books.decide(0).complete);
}

TEST(Membership, AgentsAndTheirWorkersDoNotConflict) {
  Books books{options_for(2)};
  EXPECT_EQ(books.add(agent("a", 2)), "");
  EXPECT_EQ(books.add(worker("a", 0)), "");
  EXPECT_EQ(books.add(worker("a", 1)), "");
}

TEST(Membership, ConflictsNameBothHosts) {
  Books books{options_for(4)};
  books.add(worker("a", 1, 17));
  const std::string text = books.add(worker("b", 1, 18));
  EXPECT_TRUE(has(text, "rank 1 is taken: host a (process 17)") && has(text, "before host b (process 18)")) << text;
  Books agents{options_for(4)};
  agents.add(agent("a", 3, 0));
  EXPECT_TRUE(has(agents.add(agent("b", 2, 2)), "rank 2 is taken: host a"));
}

TEST(Membership, ImpossibleMembersAreRefused) {
  Books books{options_for(2)};
  EXPECT_TRUE(has(books.add(worker("b", 2)), "host b registers as rank 2, but the job has 2 ranks, 0 to 1"));
  EXPECT_TRUE(has(books.add(worker("b", -2)), "rank -2"));
  EXPECT_TRUE(has(books.add(worker("", 0)), "without a host name"));
  EXPECT_TRUE(has(books.add({Member::worker, 0, 8, 0, "b", 1}), "for a job of 8 ranks, the coordinator for 2"));
  EXPECT_TRUE(has(books.add(agent("b")), "--slots"));
  EXPECT_TRUE(has(books.add(agent("b", -1)), "-1 slots"));
  EXPECT_TRUE(has(books.add(agent("b", 2147483647)), "slots"));
  EXPECT_TRUE(has(books.add(agent("b", 3)), "host b brings 3 ranks"));
  EXPECT_TRUE(has(books.add(agent("b", 2, 1)), "host b brings 2 ranks"));
  EXPECT_TRUE(books.attendees.empty());
  for (const char* host : {"a", "b"}) EXPECT_EQ(books.add(worker(host)), "");
  EXPECT_TRUE(has(books.add(worker("c")), "host c brings 1 rank, but of the job's 2 ranks 2 are taken, by a, b"));
}

TEST(Membership, AgentsMustBeInTheListWithItsSlots) {
  Books books{options_for(2, {{"a", 2}})};
  EXPECT_TRUE(has(books.add(agent("b"), "10.0.0.9"), "host b (10.0.0.9) is not in the job's host list (a)"));
  EXPECT_TRUE(has(books.add(agent("a", 1)), "offers 1 slots, but the job's host list gives it 2"));
}

TEST(Membership, DottedAddressesAreNotShortNames) {
  Books books{options_for(2, {{"10.0.0.1", 1}, {"10.0.0.2", 1}})};
  EXPECT_EQ(books.add(agent("10.0.0.2")), "");
  EXPECT_EQ(books.ranks(), (std::vector{1}));
  EXPECT_NE(books.add(agent("10.0.0.3")), "");
}

TEST(Membership, MembersAreLimited) {
  Books books{options_for(4)};
  books.options.most_members = 1;
  EXPECT_EQ(books.add(worker("a", 0)), "");
  EXPECT_TRUE(has(books.add(worker("b", 1)), "1 members at most"));
}

TEST(Membership, SilenceOverTheLimitIsALoss) {
  Books books{options_for(2)};
  books.add(worker("a", 0));
  books.add(worker("b", 1, 42));
  books.attendees[0].heard = at(2);
  EXPECT_TRUE(books.decide(3).departures.empty());
  const Decision decision = books.decide(3.5);
  ASSERT_EQ(decision.departures.size(), 1u);
  EXPECT_EQ(decision.departures[0].standing, Standing::lost);
  ASSERT_TRUE(decision.departures[0].failure);
  EXPECT_EQ(decision.departures[0].failure->rank, 1);
  EXPECT_EQ(decision.departures[0].failure->host, "b");
  EXPECT_TRUE(has(decision.departures[0].failure->reason,
                  "rank 1 on host b (process 42) has not been heard of for 3.5 s (limit 3 s)"));
  EXPECT_FALSE(decision.ended);
}

TEST(Membership, AnEndedConnectionIsALossAtOnce) {
  Books books{options_for(2)};
  books.add(worker("a", 0));
  books.add(worker("b", 1));
  books.attendees[1].connected = false;
  const Decision decision = books.decide(0);
  ASSERT_EQ(decision.departures.size(), 1u);
  EXPECT_TRUE(has(decision.departures[0].failure->reason, "ended without a goodbye"));
}

TEST(Membership, AGoodbyeIsNoFailureAndAnErrorIs) {
  Books books{options_for(2)};
  books.add(worker("a", 0));
  books.add(worker("b", 1));
  books.attendees[0].exit_code = 0;
  books.attendees[0].connected = false;
  Decision decision = books.decide(0);
  ASSERT_EQ(decision.departures.size(), 1u);
  EXPECT_EQ(decision.departures[0].standing, Standing::left);
  EXPECT_FALSE(decision.departures[0].failure);
  EXPECT_FALSE(decision.ended);
  books.attendees[1].exit_code = 3;
  books.attendees[1].report = "out of memory";
  decision = books.decide(0);
  ASSERT_EQ(decision.departures.size(), 1u);
  EXPECT_EQ(decision.departures[0].failure->reason,
            "rank 1 on host b (process 1) failed with exit code 3: out of memory");
  EXPECT_TRUE(decision.ended);
  EXPECT_TRUE(books.decide(100).departures.empty());  // who is gone does not go again
}

TEST(Membership, AnAgentTellsOfItsRank) {
  Books books{options_for(2)};
  books.add(agent("b", 2));
  books.attendees[0].exit_code = 137;
  books.attendees[0].report = "killed by signal 9";
  books.attendees[0].reported_rank = 0;
  const Decision decision = books.decide(0);
  ASSERT_EQ(decision.departures.size(), 1u);
  EXPECT_EQ(decision.departures[0].failure->rank, 0);
  EXPECT_EQ(decision.departures[0].failure->reason, "rank 0 on host b failed with exit code 137: killed by signal 9");
}

TEST(Membership, AVictimIsNotBlamedWhenTheCulpritTurnsUp) {
  Books books{options_for(2)};
  books.add(worker("a", 0));
  books.add(worker("b", 1));
  books.attendees[0].exit_code = kPeerLostExit;
  EXPECT_TRUE(books.decide(1).departures.empty());
  books.attendees[1].connected = false;
  const Decision decision = books.decide(2);
  ASSERT_EQ(decision.departures.size(), 2u);
  EXPECT_EQ(decision.departures[0].failure->rank, 1);
  EXPECT_FALSE(decision.departures[1].failure);
  EXPECT_TRUE(decision.ended);
}

TEST(Membership, AFailureFromOutsideFreesVictims) {
  Books books{options_for(2)};
  EXPECT_TRUE(judge(at(0), {}, books.options, true).ended);
  books.add(worker("a", 0));
  books.attendees[0].exit_code = kPeerLostExit;
  const Decision decision = judge(at(0), books.attendees, books.options, true);
  ASSERT_EQ(decision.departures.size(), 1u);
  EXPECT_FALSE(decision.departures[0].failure);
  EXPECT_TRUE(decision.ended);
}

TEST(Membership, AVictimWithoutACulpritIsBlamedAfterTheLimit) {
  Books books{options_for(2)};
  books.add(worker("a", 0));
  books.add(worker("b", 1));
  books.attendees[0].exit_code = kPeerLostExit;
  books.attendees[1].heard = at(3);
  const Decision decision = books.decide(3.5);
  ASSERT_EQ(decision.departures.size(), 1u);
  EXPECT_TRUE(has(decision.departures[0].failure->reason, "nobody else has failed"));
}

TEST(Membership, AJobEndsWhenItWasCompleteAndAllHaveLeft) {
  Books books{options_for(2)};
  EXPECT_FALSE(books.decide(0).ended);
  books.add(worker("a", 0));
  books.attendees[0].exit_code = 0;
  EXPECT_FALSE(books.decide(0).ended);  // rank 1 is still to come
  EXPECT_EQ(books.decide(0).reason, "1 of 2 ranks have registered; rank 1 has not");
  books.add(worker("b", 1));
  EXPECT_FALSE(books.decide(0).ended);
  books.attendees[1].exit_code = 0;
  EXPECT_TRUE(books.decide(0).ended);
}

TEST(Membership, ARankThatWasLeftCanBeTakenAgain) {
  Books books{options_for(1)};
  books.add(worker("a", 0));
  books.attendees[0].exit_code = 0;
  books.decide(0);
  EXPECT_EQ(books.add(worker("b", 0)), "");
}

TEST(Membership, ClocksAreCompared) {
  EXPECT_EQ(clock_warning("b", 1000, "a", 1004.9), "");
  EXPECT_TRUE(has(clock_warning("b", 1012.3, "a", 1000),
                  "the clock of host b is 12.3 s ahead of that of the coordinator's host a"));
  EXPECT_TRUE(has(clock_warning("b", 900, "a", 1000), "100.0 s behind"));
  EXPECT_NE(clock_warning("b", std::numeric_limits<double>::quiet_NaN(), "a", 0), "");
}

/// Whatever happens: ranks are unique per kind and in range, a rank never changes, the epoch grows with every change,
/// nobody leaves twice.
TEST(Membership, RandomHistoriesKeepTheRules) {
  std::mt19937 random(7);
  const auto below = [&](int n) { return static_cast<int>(random() % static_cast<unsigned>(n)); };
  for (int round = 0; round < 2000; round++) {
    Books books{options_for(1 + below(6), below(2) == 0
                                              ? std::vector<std::pair<std::string, int>>{}
                                              : std::vector<std::pair<std::string, int>>{{"a", 1}, {"b", 2}})};
    uint64_t epoch = 0;
    std::vector<int> before;
    for (int step = 0; step < 20; step++) {
      const std::string host(1, static_cast<char>('a' + below(3)));
      const bool joined =
          below(2) == 0 &&
          books.add(below(3) == 0 ? agent(host, below(3)) : worker(host, below(3) == 0 ? below(7) - 1 : -1)).empty();
      if (!joined && !books.attendees.empty()) {
        Attendee& attendee = books.attendees[static_cast<size_t>(below(static_cast<int>(books.attendees.size())))];
        if (attendee.standing == Standing::present && !attendee.exit_code) {
          if (below(2) == 0)
            attendee.exit_code = std::vector{0, 1, kPeerLostExit}[static_cast<size_t>(below(3))];
          else
            attendee.heard = at(step - 2);
        }
      }
      const bool change = joined || !books.decide(step).departures.empty();
      EXPECT_GE(epoch_of(books.attendees), epoch + (change ? 1 : 0));
      epoch = epoch_of(books.attendees);
      std::set<std::pair<int, int>> held;
      for (const Attendee& attendee : books.attendees) {
        const int ranks = attendee.member.kind == Member::agent ? attendee.member.slots : 1;
        if (attendee.standing != Standing::present || attendee.member.rank < 0) continue;
        for (int i = 0; i < ranks; i++)
          EXPECT_TRUE(held.emplace(attendee.member.kind, attendee.member.rank + i).second);
        EXPECT_LE(attendee.member.rank + ranks, std::max(books.options.ranks, 3));
      }
      const std::vector<int> ranks = books.ranks();
      for (size_t i = 0; i < before.size(); i++) EXPECT_TRUE(before[i] < 0 || before[i] == ranks[i]);
      before = ranks;
    }
  }
}

// ---- parameter servers ----

MembershipOptions with_servers(int ranks, int servers, std::vector<std::pair<std::string, int>> hosts = {}) {
  MembershipOptions options = options_for(ranks, std::move(hosts));
  options.servers = servers;
  return options;
}

TEST(Membership, ServersAreNumberedApartFromRanksAndAtOnce) {
  Books books{with_servers(2, 3)};
  EXPECT_EQ(books.add(server("a", 1)), "");
  EXPECT_EQ(books.add(server("b")), "");
  EXPECT_EQ(books.ranks(), (std::vector{1, 0}));  // without waiting for anybody
  EXPECT_EQ(books.add(worker("a")), "");
  EXPECT_EQ(books.add(server("b")), "");
  EXPECT_EQ(books.ranks(), (std::vector{1, 0, -1, 2}));
  EXPECT_EQ(books.add(worker("a")), "");
  EXPECT_EQ(books.ranks(), (std::vector{1, 0, 0, 2, 1}));
}

TEST(Membership, RanksArePlacedWithoutServers) {
  Books books{with_servers(2, 2)};
  for (const char* host : {"a", "b"}) EXPECT_EQ(books.add(worker(host)), "");
  EXPECT_EQ(books.ranks(), (std::vector{0, 1}));
  EXPECT_FALSE(books.decide(0).complete);
  EXPECT_EQ(books.decide(0).reason,
            "all 2 ranks have registered; 0 of 2 servers have registered; servers 0 and 1 have not");
  books.add(server("a", 1));
  EXPECT_EQ(books.decide(0).reason, "all 2 ranks have registered; 1 of 2 servers have registered; server 0 has not");
  books.add(server("a"));
  EXPECT_TRUE(books.decide(0).complete);
  EXPECT_EQ(books.decide(0).reason, "all 2 ranks have registered; all 2 servers have registered");
}

TEST(Membership, AJobEndsWhenItsServersHaveLeftToo) {
  Books books{with_servers(1, 1)};
  books.add(worker("a", 0));
  books.add(server("a", 0));
  books.attendees[0].exit_code = 0;
  const Decision first = books.decide(0);
  EXPECT_FALSE(first.ended);
  EXPECT_TRUE(first.complete);
  books.attendees[1].exit_code = 0;
  const Decision last = books.decide(0);
  EXPECT_TRUE(last.ended);
  ASSERT_EQ(last.departures.size(), 1u);
  EXPECT_FALSE(last.departures[0].failure);
  EXPECT_EQ(last.departures[0].reason, "server 0 on host a (process 1) has left");
}

TEST(Membership, ALostServerFailsTheJobByName) {
  Books books{with_servers(1, 2)};
  books.add(worker("a", 0));
  books.add(server("a", 0));
  books.add(server("b", 1, 4242));
  books.attendees[2].connected = false;
  const Decision decision = books.decide(0);
  ASSERT_EQ(decision.departures.size(), 1u);
  ASSERT_TRUE(decision.departures[0].failure);
  EXPECT_EQ(decision.departures[0].failure->rank, -1);
  EXPECT_EQ(decision.departures[0].failure->host, "b");
  EXPECT_EQ(decision.departures[0].failure->reason,
            "server 1 on host b (process 4242) is gone: its connection ended without a goodbye, so it was killed or "
            "has crashed");
  // The other gave up because of it.
  books.attendees[1].exit_code = kPeerLostExit;
  EXPECT_EQ(books.decide(0).departures.at(0).reason, "server 0 on host a (process 1) gave up because of the failure");
}

TEST(Membership, ASilentServerIsLost) {
  Books books{with_servers(1, 1)};
  books.add(server("b", 0));
  EXPECT_TRUE(books.decide(3).departures.empty());
  EXPECT_TRUE(
      has(books.decide(3.5).departures.at(0).reason, "server 0 on host b (process 1) has not been heard of for 3.5 s"));
}

TEST(Membership, AgentsTellOfServersThatDied) {
  Books books{with_servers(2, 2, {{"a", 1}, {"b", 1}})};
  books.add(agent("a"));
  books.add(agent("b"));
  EXPECT_TRUE(books.decide(0).complete);  // as for ranks: their agents stand for them
  books.attendees[1].exit_code = 137;
  books.attendees[1].report = "killed by signal 9";
  books.attendees[1].reported_server = 1;
  const Decision decision = books.decide(0);
  ASSERT_TRUE(decision.departures.at(0).failure);
  EXPECT_EQ(decision.departures[0].failure->rank, -1);
  EXPECT_EQ(decision.departures[0].failure->reason, "server 1 on host b failed with exit code 137: killed by signal 9");
}

TEST(Membership, ImpossibleServersAreRefused) {
  Books none{options_for(2)};
  EXPECT_TRUE(has(none.add(server("b", 0)),
                  "host b brings a parameter server, but the coordinator was started for a job without any"));
  EXPECT_TRUE(has(none.add({Member::worker, 0, 0, 0, "b", 1, 2}), "for a job of 2 servers, the coordinator for 0"));
  Books books{with_servers(4, 2)};
  EXPECT_TRUE(has(books.add(server("b", 2)), "host b registers as server 2, but the job has 2 servers, 0 to 1"));
  EXPECT_TRUE(has(books.add(server("b", -2)), "server -2"));
  EXPECT_TRUE(has(books.add({Member::server, 0, 3, 0, "b", 1}), "for a job of 3 ranks, the coordinator for 4"));
  EXPECT_TRUE(has(books.add({Member::server, 0, 4, 0, "b", 1, 1}), "for a job of 1 server, the coordinator for 2"));
  EXPECT_EQ(books.add({Member::server, 0, 4, 0, "a", 17, 2}), "");
  const std::string taken = books.add(server("b", 0, 18));
  EXPECT_TRUE(has(taken, "server 0 is taken: host a (process 17)") && has(taken, "before host b (process 18)"))
      << taken;
  EXPECT_EQ(books.add(server("b")), "");
  EXPECT_TRUE(has(books.add(server("c")), "host c brings 1 server, but of the job's 2 servers 2 are taken, by a, b"));
  EXPECT_EQ(books.add(worker("c", 0)), "");  // its number is a rank's
}

TEST(Membership, AServerThatLeftCanBeReplaced) {
  Books books{with_servers(1, 2)};
  for (const char* host : {"a", "b"}) books.add(server(host));
  books.attendees[0].exit_code = 0;
  books.decide(0);
  EXPECT_EQ(books.add(server("c")), "");
  EXPECT_EQ(books.attendees[2].member.rank, 0);
}

}  // namespace
}  // namespace trireme::cluster::tests
