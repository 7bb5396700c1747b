// label: multiproc grpc
// Ranks as processes of one machine that come and go while the others row, with a desk behind a unix socket as in a
// launcher, or with a coordinator. Across machines: tests/hosts/test_regroup.py.
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <algorithm>
#include <iostream>
#include <memory>

#include <trireme/cluster/coordination/coordinator.h>
#include <trireme/cluster/launching/keeper.h>
#include <trireme/cluster/world.h>

#include "../comm/process.h"

namespace trireme::cluster::tests {
namespace {

using trireme::tests::Process;

constexpr Seconds kTimeout{20};

/// A number that each rank of the group gives: its rank in the world, plus one.
void check_sum(const Group& group, int rank) {
  std::vector<float> data(5001, static_cast<float>(rank + 1));
  group.comm().allreduce(data.data(), data.size(), DType::f32, Op::sum, "numbers");
  float wanted = 0;
  for (int other : group.ranks()) wanted += static_cast<float>(other + 1);
  for (float x : data)
    if (x != wanted) fail<Error>("{} instead of {}", x, wanted);
}

/// True when one of them wants it.
bool agreed(const Group& group, bool wanted) {
  float any = wanted ? 1 : 0;
  group.comm().allreduce(&any, 1, DType::f32, Op::sum, "is a change wanted?");
  return any > 0;
}

/// The desk, in a process of its own, as gRPC's threads do not survive a fork. Does what it is told: "target 3",
/// "drain 2", "spares 1", "over".
class Office {
 public:
  Office(int ranks, int least, Seconds rejoin_timeout, bool network, Seconds heartbeat_limit = Seconds(10))
      : network_(network),
        job_(fmt::format("elastic-{}-{}", testing::UnitTest::GetInstance()->current_test_info()->line(), getpid())) {
    if (pipe(words_) != 0) throw std::runtime_error("no pipe");
    process_ = std::make_unique<Process>([=, this](const Process::Say& say) {
      CoordinatorOptions options;
      const std::string name = fmt::format("trireme-test-desk-{}", getpid());
      if (network)
        options.address = "127.0.0.1";
      else
        options.socket = name;
      options.token = "secret";
      options.job = job_;
      options.ranks = ranks;
      options.heartbeat_limit = heartbeat_limit;
      options.on_loss = OnLoss::change_crew;
      options.least = least;
      options.rejoin_timeout = rejoin_timeout;
      Coordinator coordinator(options);
      say(network ? fmt::format("127.0.0.1:{}", coordinator.port()) : name + "/secret");
      obey(coordinator, say);
    });
    where_ = process_->next_line();
  }
  ~Office() {
    close(words_[0]);
    close(words_[1]);
  }
  Office(const Office&) = delete;
  Office& operator=(const Office&) = delete;

  std::string tell(const std::string& word) {
    const std::string line = word + "\n";
    EXPECT_EQ(write(words_[1], line.data(), line.size()), static_cast<ssize_t>(line.size()));
    return process_->next_line();
  }
  void point(Place& place) const {
    place.job = job_;
    (network_ ? place.coordinator : place.desk) = where_;
    place.token = "secret";
  }

 private:
  void obey(Coordinator& coordinator, const Process::Say& say) const {
    std::string text;
    for (char c = 0; read(words_[0], &c, 1) == 1;) {
      if (c != '\n') {
        text += c;
        continue;
      }
      const std::string word = text.substr(0, text.find(' '));
      const int number = text.find(' ') == text.npos ? 0 : std::stoi(text.substr(text.find(' ')));
      text.clear();
      if (word == "target") say("did " + coordinator.set_target(number));
      if (word == "drain") say("did " + coordinator.drain(number));
      if (word == "over") say(coordinator.wait_ended(Deadline(kTimeout)) ? "over" : "not over");
      if (word == "spares") say(wait_for_spares(coordinator, static_cast<size_t>(number)));
    }
  }
  static std::string wait_for_spares(const Coordinator& coordinator, size_t count) {
    for (const Deadline deadline(kTimeout); !deadline.passed(); usleep(2000))
      if (coordinator.snapshot().crew.spares.size() >= count) return "there";
    return "not there";
  }

  bool network_;
  std::string job_;
  int words_[2] = {-1, -1};
  std::unique_ptr<Process> process_;
  std::string where_;
};

size_t bytes_of(const Segment& segment) {
  struct stat file {};
  fstat(segment.descriptor(), &file);
  return static_cast<size_t>(file.st_blocks) * 512;
}

/// Rows until the test ends it, with a line for each crew: "ranks 0, 1 of epoch 1: REASON".
void row(World& world, const Process::Say& say, int changes) {
  const auto introduce = [&] {
    say(fmt::format("{}: {}", world.group().describe(), world.changes().empty() ? "" : world.changes().back().reason));
  };
  introduce();
  for (int seen = 0; seen < changes;) try {
      check_sum(world.group(), world.rank());
      if (!agreed(world.group(), world.change_wanted())) continue;
      world.regroup();
      seen++;
      introduce();
    } catch (const PeerLost&) {
      world.regroup();
      seen++;
      introduce();
    }
}

/// The ranks of one job, and the memory that a launcher would keep for them.
class Crew {
 public:
  /// Ends after so many changes of the crew.
  Crew(const Office& office, int ranks, int changes) : office_(office), size_(ranks) {
    for (int rank = 0; rank < ranks; rank++) start(rank, changes, false);
  }
  void start(int rank, int changes, bool newcomer = true) {
    Place place{rank, size_, "", "test"};
    office_.point(place);
    place.segment = keeper_.variable();
    place.newcomer = newcomer;
    ranks_[rank] = std::make_unique<Process>([=](const Process::Say& say) {
      World world(place, {.timeout = kTimeout, .heartbeat_limit = Seconds(10)});
      if (world.newcomer() != newcomer) fail<Error>("who is a newcomer?");
      if (!world.elastic()) fail<Error>("the job is not elastic");
      try {
        if (newcomer) {
          check_sum(world.group(), rank);  // alone
          if (world.group().size() != 1 || world.change_wanted()) fail<Error>("a newcomer is alone");
          say("ready");
          world.enter();
        }
        row(world, say, changes);
        world.comm().barrier("end");
      } catch (const Dismissed& why) {
        say(std::string("dismissed: ") + why.what());
      }
    });
  }
  Process& operator[](int rank) { return *ranks_.at(rank); }
  void expect(std::initializer_list<int> ranks, const std::string& line) {
    for (int rank : ranks) {
      const std::string said = (*this)[rank].next_line();
      EXPECT_EQ(said.substr(0, line.size()), line) << "rank " << rank << ": " << said;
    }
  }

 private:
  const Office& office_;
  int size_;
  Keeper keeper_;
  std::map<int, std::unique_ptr<Process>> ranks_;
};

class Elastic : public testing::TestWithParam<bool> {};

TEST_P(Elastic, ALossOfTheFirst) {
  Office office(3, 1, Seconds(0), GetParam());
  Crew crew(office, 3, 1);
  crew.expect({0, 1, 2}, "ranks 0, 1, 2 of epoch 0: ");
  kill(crew[0].pid(), SIGKILL);
  crew.expect({1, 2}, "ranks 1, 2 of epoch 1: rank 0 on host ");
  crew.expect({1, 2}, "ok");
}

TEST_P(Elastic, ANewcomerComesInWithoutAnInterruption) {
  Office office(2, 1, Seconds(0), GetParam());
  Crew crew(office, 2, 1);
  crew.expect({0, 1}, "ranks 0, 1 of epoch 0: ");
  EXPECT_EQ(office.tell("target 3"), "did ");
  crew.start(2, 0);
  crew.expect({2}, "ready");
  crew.expect({0, 1, 2}, "ranks 0, 1, 2 of epoch 1: rank 2 comes in");
  crew.expect({0, 1, 2}, "ok");
  EXPECT_EQ(office.tell("over"), "over");
}

TEST_P(Elastic, ASpareTakesThePlaceOfALostOne) {
  Office office(2, 1, Seconds(0), GetParam());
  Crew crew(office, 2, 1);
  crew.expect({0, 1}, "ranks 0, 1 of epoch 0: ");
  crew.start(2, 0);
  crew.start(3, 0);
  crew.expect({2, 3}, "ready");
  EXPECT_EQ(office.tell("spares 2"), "there");
  kill(crew[1].pid(), SIGKILL);
  crew.expect({0, 2}, "ranks 0, 2 of epoch 1: rank 1 on host ");
  crew.expect({0, 2}, "ok");
  crew.expect({3}, "dismissed: the job is over");
  EXPECT_EQ(office.tell("over"), "over");
}

TEST_P(Elastic, OneIsLostWhileAnotherComes) {
  Office office(3, 1, Seconds(0), GetParam());
  Crew crew(office, 3, 100);
  crew.expect({0, 1, 2}, "ranks 0, 1, 2 of epoch 0: ");
  EXPECT_EQ(office.tell("target 4"), "did ");
  crew.start(3, 100);
  kill(crew[1].pid(), SIGKILL);
  for (int rank : {0, 2, 3})
    for (std::string line; line.find("ranks 0, 2, 3 of epoch") == line.npos;) {
      line = crew[rank].next_line();
      ASSERT_TRUE(line.starts_with("rank") || line == "ready") << "rank " << rank << ": " << line;
    }
}

TEST_P(Elastic, OneIsDrained) {
  Office office(3, 1, Seconds(0), GetParam());
  Crew crew(office, 3, 1);
  crew.expect({0, 1, 2}, "ranks 0, 1, 2 of epoch 0: ");
  EXPECT_EQ(office.tell("drain 7"), "did the job has no rank 7 now");
  EXPECT_EQ(office.tell("drain 0"), "did ");
  crew.expect({0}, "dismissed: rank 0 is not in the crew of epoch 1 any more: rank 0 goes");
  crew.expect({1, 2}, "ranks 1, 2 of epoch 1: rank 0 goes");
  crew.expect({0, 1, 2}, "ok");
  EXPECT_EQ(office.tell("over"), "over");
}

TEST_P(Elastic, TooFewWaitForANewcomer) {
  Office office(2, 2, Seconds(20), GetParam());
  Crew crew(office, 2, 1);
  crew.expect({0, 1}, "ranks 0, 1 of epoch 0: ");
  EXPECT_EQ(office.tell("target 1"), "did the job was started for 2 to 65536 workers, not for 1");
  kill(crew[0].pid(), SIGKILL);
  crew.start(2, 0);
  crew.expect({2}, "ready");
  crew.expect({1, 2}, "ranks 1, 2 of epoch 2: rank 0 on host ");
  crew.expect({1, 2}, "ok");
}

TEST_P(Elastic, TooFewAndNobodyComes) {
  Office office(2, 2, Seconds(0.5), GetParam(), Seconds(1));
  Crew crew(office, 2, 1);
  crew.expect({0, 1}, "ranks 0, 1 of epoch 0: ");
  kill(crew[0].pid(), SIGKILL);
  const std::string line = crew[1].next_line();
  for (const char* part : {"PeerLost: ", "rank 0 on host ", "1 worker is left, and the job needs at least 2",
                           "Nobody came in their place within 0.5 s. Start more workers"})
    EXPECT_NE(line.find(part), line.npos) << line;
}

TEST_P(Elastic, OneThatWasGivenUpComesBackAndHearsIt) {
  Office office(3, 1, Seconds(0), GetParam(), Seconds(1));
  Crew crew(office, 3, 1);
  crew.expect({0, 1, 2}, "ranks 0, 1, 2 of epoch 0: ");
  kill(crew[2].pid(), SIGSTOP);
  crew.expect({0, 1}, "ranks 0, 1 of epoch 1: rank 2 on host ");
  crew.expect({0, 1}, "ok");
  kill(crew[2].pid(), SIGCONT);
  const std::string line = crew[2].next_line();
  for (const char* part : {"PeerLost: ", "has not been heard of for", "given up for lost"})
    EXPECT_NE(line.find(part), line.npos) << line;
}

TEST_P(Elastic, WhoDoesNotBelongIsRefused) {
  Office office(1, 1, Seconds(0), GetParam());
  Crew crew(office, 1, 1);
  crew.expect({0}, "rank 0 of epoch 0: ");
  crew.start(0, 0);  // a number that somebody has
  const std::string line = crew[0].next_line();
  EXPECT_NE(line.find("rank 0 is taken: one of the first crew has it or had it"), line.npos) << line;
}

/// Nobody would tell it of the next crew. Where the crew does not change, a rank does without.
TEST(ElasticDesk, ARankThatItDoesNotTakeCannotGoOnWithout) {
  Office office(1, 1, Seconds(0), false);
  for (const bool elastic : {true, false}) {
    Place place{0, 1, "", "test"};
    office.point(place);
    place.desk = place.desk.substr(0, place.desk.find('/')) + "/another token" + (elastic ? "/elastic" : "");
    Process rank([=](const Process::Say& say) {
      const World world(place, {.timeout = kTimeout});
      say(world.warnings().empty() ? "no warning" : world.warnings().back());
    });
    const std::string line = rank.next_line();
    EXPECT_EQ(line.starts_with("error: "), elastic) << line;
    EXPECT_EQ(line.starts_with("this rank does without its launcher's desk: "), !elastic) << line;
    EXPECT_NE(line.find("token"), line.npos) << line;
  }
}

INSTANTIATE_TEST_SUITE_P(DeskAndCoordinator, Elastic, testing::Bool(),
                         [](const auto& info) { return info.param ? "Coordinator" : "Desk"; });

/// Rank 0 stays, and says after each change how much memory the segment has.
void stay(const Place& place, const Process::Say& say) {
  World world(place, {.timeout = kTimeout});
  say("in");
  while (true) {
    const Group part = world.split(0);
    check_sum(part, world.rank());
    while (!agreed(world.group(), world.change_wanted())) check_sum(world.group(), world.rank());
    world.regroup();
    say(fmt::format("{} {}", world.group().size(), bytes_of(world.local().segment())));
  }
}

void come_and_go(const Place& place) {
  World world(place, {.timeout = kTimeout});
  try {
    for (world.enter(); true; world.regroup()) {
      const Group part = world.split(0);
      check_sum(part, world.rank());
      while (!agreed(world.group(), world.change_wanted())) check_sum(world.group(), world.rank());
    }
  } catch (const Dismissed&) {
  }
}

/// A rank comes and goes, again and again: the memory of crews that have ended is given back.
TEST(ElasticMemory, AHundredChangesDoNotGrowTheSegment) {
  Office office(1, 1, Seconds(0), false);
  Keeper keeper;
  const auto place_of = [&](int rank) {
    Place place{rank, 1, "", "test"};
    office.point(place);
    place.segment = keeper.variable();
    place.newcomer = rank > 0;
    return place;
  };
  Process first([place = place_of(0)](const Process::Say& say) { stay(place, say); });
  ASSERT_EQ(first.next_line(), "in");
  std::vector<size_t> bytes;
  for (int rank = 1; rank <= 50; rank++) {
    ASSERT_EQ(office.tell("target 2"), "did ");
    Process other([place = place_of(rank)](const Process::Say&) { come_and_go(place); });
    for (const int size : {2, 1}) {
      const std::string line = first.next_line();
      ASSERT_EQ(line.substr(0, 2), fmt::format("{} ", size)) << line;
      bytes.push_back(std::stoul(line.substr(2)));
      if (size == 2) {
        ASSERT_EQ(office.tell("target 1"), "did ");
      }
    }
    ASSERT_EQ(other.next_line(), "ok");
  }
  std::cout << fmt::format("the segment had {:.1f} MB after 20 changes, {:.1f} MB after 100\n", bytes[19] / 1e6,
                           bytes[99] / 1e6);
  EXPECT_LT(bytes[99], bytes[19] + (4 << 20));  // what a change leaves for good is more than this in 80 of them
}

}  // namespace
}  // namespace trireme::cluster::tests
