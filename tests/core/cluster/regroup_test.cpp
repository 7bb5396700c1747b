// label: multiproc grpc
// Ranks as processes, of which some are killed in the middle of a collective: the others make a new group in the same
// processes, on the same memory, and go on. On one machine, with a coordinator and without; across machines:
// tests/hosts/test_regroup.py.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <iostream>
#include <memory>
#include <optional>

#include <trireme/cluster/coordination/coordinator.h>
#include <trireme/cluster/world.h>

#include "../comm/process.h"

namespace trireme::cluster::tests {
namespace {

using trireme::tests::Process;

constexpr Seconds kTimeout{20};
constexpr size_t kCount = 70001;

Place place_of(int rank, int ranks) {
  return {rank, ranks, fmt::format("{}-{}", testing::UnitTest::GetInstance()->current_test_info()->name(), getpid()),
          "test"};
}

/// Every rank gives its number in the world, plus one.
void check_sum(const Group& group, int rank) {
  std::vector<float> data(kCount, static_cast<float>(rank + 1));
  group.comm().allreduce(data.data(), data.size(), DType::f32, Op::sum, "numbers");
  float wanted = 0;
  for (int other : group.ranks()) wanted += static_cast<float>(other + 1);
  for (float x : data)
    if (x != wanted) fail<Error>("{} instead of {}", x, wanted);
}

constexpr const char* kLeft = "what rank 1 has left";

/// Reduces until somebody dies, says so, makes the next group, reduces again: as often as there are deaths.
void survive(World& world, const Process::Say& say, int deaths) {
  auto left = world.local().keep(kLeft, 4096, 1);
  if (world.rank() == 1) left.parts[0][4095] = std::byte{42};
  world.comm().barrier("written");
  for (int epoch = 0; epoch < deaths; epoch++) try {
      for (int i = 0;; i++) {
        check_sum(world.group(), world.rank());
        if (i == 5) say("running");
      }
    } catch (const PeerLost& error) {
      const auto noticed = Clock::now();
      const Group before = world.group();
      const Group& group = world.regroup();
      const double ms = seconds_since(noticed) * 1e3;
      for (int i = 0; i < 5; i++) check_sum(group, world.rank());
      left = world.local().keep(kLeft, 4096, 1);
      if (!left.found || left.parts[0][4095] != std::byte{42}) fail<Error>("the memory has not survived");
      try {
        before.comm();
        fail<Error>("a group of the epoch before is still of use");
      } catch (const InvalidArgument&) {
      }
      say(fmt::format("{} {:.3f}", group.describe(), ms));
    }
}

using Processes = std::vector<std::unique_ptr<Process>>;

Processes start(
    int ranks, int deaths, const std::function<void(Place&)>& with = [](Place&) {}) {
  Processes processes;
  for (int rank = 0; rank < ranks; rank++) {
    Place place = place_of(rank, ranks);
    with(place);
    processes.push_back(std::make_unique<Process>([=](const Process::Say& say) {
      World world(place, {.timeout = kTimeout, .heartbeat_limit = Seconds(10)});
      survive(world, say, deaths);
      world.comm().barrier("end");
    }));
  }
  for (auto& process : processes) EXPECT_EQ(process->next_line(), "running");
  return processes;
}

/// What a survivor says: its group, and the milliseconds from the notice to it.
double expect_group(Process& survivor, const std::string& group) {
  const std::string line = survivor.next_line();
  EXPECT_EQ(line.substr(0, line.rfind(' ')), group);
  return line.starts_with("rank") ? std::stod(line.substr(line.rfind(' '))) : 0;
}

TEST(Regroup, ThreeOfFourGoOnWhoeverDies) {
  for (size_t victim : {1, 0, 3}) {
    Processes ranks = start(4, 1);
    kill(ranks[victim]->pid(), SIGKILL);
    std::vector<size_t> rest = {0, 1, 2, 3};
    std::erase(rest, victim);
    for (size_t rank : rest)
      expect_group(*ranks[rank], fmt::format("ranks {}, {}, {} of epoch 1", rest[0], rest[1], rest[2]));
    for (size_t rank : rest) EXPECT_EQ(ranks[rank]->next_line(), "ok");
  }
}

TEST(Regroup, OneAfterAnother) {
  Processes ranks = start(4, 3);
  kill(ranks[2]->pid(), SIGKILL);
  for (size_t rank : {0, 1, 3}) expect_group(*ranks[rank], "ranks 0, 1, 3 of epoch 1");
  for (size_t rank : {0, 1, 3}) EXPECT_EQ(ranks[rank]->next_line(), "running");
  kill(ranks[0]->pid(), SIGKILL);
  for (size_t rank : {1, 3}) expect_group(*ranks[rank], "ranks 1, 3 of epoch 2");
  for (size_t rank : {1, 3}) EXPECT_EQ(ranks[rank]->next_line(), "running");
  kill(ranks[3]->pid(), SIGKILL);
  expect_group(*ranks[1], "rank 1 of epoch 3");
  EXPECT_EQ(ranks[1]->next_line(), "ok");
}

TEST(Regroup, TwoAtOnce) {
  Processes ranks = start(4, 1);
  kill(ranks[0]->pid(), SIGKILL);
  kill(ranks[2]->pid(), SIGKILL);
  for (size_t rank : {1, 3}) {
    const std::string line = ranks[rank]->next_line();
    EXPECT_TRUE(line.starts_with("ranks 1, 3 of epoch ")) << line;
  }
}

TEST(Regroup, SomebodyWhoLivesAndDoesNotComeIsNamed) {
  Processes processes;
  for (int rank = 0; rank < 3; rank++) {
    const Place place = place_of(rank, 3);
    processes.push_back(std::make_unique<Process>([=](const Process::Say& say) {
      World world(place, {.timeout = Seconds(1)});
      say("running");
      if (rank == 2) pause();
      if (rank == 1) raise(SIGKILL);
      try {
        world.comm().barrier("never");
      } catch (const PeerLost&) {
      }
      world.regroup();
    }));
  }
  const std::string line = (processes[0]->next_line(), processes[0]->next_line());
  for (const char* part : {"Timeout: rank 2 did not come", "epoch 0", "rank 0 waited"})
    EXPECT_NE(line.find(part), std::string::npos) << line;
}

/// What was started in the epoch before ends with an error that says why, at the first wait and at all later ones, and
/// does not disturb the new crew.
TEST(Regroup, WhatWasStartedBeforeEndsWithANamedError) {
  Processes processes;
  for (int rank = 0; rank < 3; rank++) {
    const Place place = place_of(rank, 3);
    processes.push_back(std::make_unique<Process>([=](const Process::Say& say) {
      World world(place, {.timeout = kTimeout});
      std::vector<float> data(kCount, 1), gathered(3 * kCount), letter(kCount);
      world.comm().barrier("start");
      if (rank == 1) raise(SIGKILL);
      const Group before = world.group();
      const auto sum = world.comm().start_allreduce(data.data(), kCount, DType::f32, Op::sum, "a sum");
      const auto all = world.comm().start_all_gather(data.data(), gathered.data(), kCount, DType::f32, "a gathering");
      const auto message = world.comm().start_receive(letter.data(), kCount, DType::f32, 1, "a letter");
      const auto error_of = [](comm::Work& work) -> std::string {
        try {
          work.wait();
          return "complete";
        } catch (const PeerLost& error) {
          return error.what();
        }
      };
      for (comm::Work* work : {sum.get(), all.get(), message.get()})
        if (const std::string error = error_of(*work); error.find("rank 1") == std::string::npos)
          fail<Error>("not named: {}", error);
      world.regroup();
      for (comm::Work* work : {sum.get(), all.get(), message.get()})
        if (const std::string error = error_of(*work); error.find("rank 1") == std::string::npos)
          fail<Error>("not named after the crew has changed: {}", error);
      for (int i = 0; i < 5; i++) check_sum(world.group(), rank);
      const auto after = world.comm().start_allreduce(data.data(), kCount, DType::f32, Op::max, "after it");
      after->wait();
      try {
        before.split(0);
        fail<Error>("a group whose epoch has ended was split");
      } catch (const InvalidArgument& error) {
        say(error.what());
      }
    }));
  }
  for (size_t rank : {0, 2}) {
    const std::string line = processes[rank]->next_line();
    for (const char* side : {"ranks 0, 1, 2 of epoch 0", "its epoch is 1 now"})
      EXPECT_NE(line.find(side), std::string::npos) << line;
    EXPECT_EQ(processes[rank]->next_line(), "ok");
  }
}

TEST(Regroup, APartOfTheNewCrewIsAGroupLikeAnyOther) {
  Processes processes;
  for (int rank = 0; rank < 4; rank++) {
    const Place place = place_of(rank, 4);
    processes.push_back(std::make_unique<Process>([=](const Process::Say& say) {
      World world(place, {.timeout = kTimeout});
      const Group old_part = world.split(rank / 2);
      check_sum(old_part, rank);
      if (rank == 1) raise(SIGKILL);
      try {
        while (true) check_sum(world.group(), rank);
      } catch (const PeerLost&) {
      }
      world.regroup();
      const Group part = world.split(rank == 0 ? 0 : 1);
      check_sum(part, rank);
      check_sum(world.group(), rank);
      say(part.describe());
    }));
  }
  EXPECT_EQ(processes[0]->next_line(), "rank 0 of epoch 1");
  for (size_t rank : {2, 3}) EXPECT_EQ(processes[rank]->next_line(), "ranks 2, 3 of epoch 1");
  for (size_t rank : {0, 2, 3}) EXPECT_EQ(processes[rank]->next_line(), "ok");
}

// ---- with a coordinator ----

/// In a process of its own, as gRPC's threads do not survive a fork. `desk`: behind a unix socket, as in a launcher.
struct Office {
  explicit Office(int ranks, OnLoss on_loss, bool desk = false)
      : process([=, job = place_of(0, ranks).job](const Process::Say& say) {
          CoordinatorOptions options;
          if (desk)
            options.socket = fmt::format("trireme-test-desk-{}", getpid());
          else
            options.address = "127.0.0.1";
          options.token = "secret";
          options.job = job;
          options.ranks = ranks;
          options.heartbeat_limit = Seconds(10);
          options.on_loss = on_loss;
          const Coordinator coordinator(options);
          say(desk ? options.socket + "/secret/elastic" : fmt::format("127.0.0.1:{}", coordinator.port()));
          pause();
        }),
        where(process.next_line()),
        has_desk(desk) {}
  void tell(Place& place) const {
    (has_desk ? place.desk : place.coordinator) = where;
    place.token = "secret";
  }
  Process process;
  std::string where;
  bool has_desk;
};

TEST(RegroupWithACoordinator, ThreeOfFourGoOn) {
  const Office office(4, OnLoss::change_crew);
  Processes ranks = start(4, 1, [&](Place& place) { office.tell(place); });
  kill(ranks[0]->pid(), SIGKILL);
  for (size_t rank : {1, 2, 3}) expect_group(*ranks[rank], "ranks 1, 2, 3 of epoch 1");
  for (size_t rank : {1, 2, 3}) EXPECT_EQ(ranks[rank]->next_line(), "ok");
}

TEST(RegroupWithACoordinator, OneAfterAnother) {
  const Office office(4, OnLoss::change_crew);
  Processes ranks = start(4, 2, [&](Place& place) { office.tell(place); });
  kill(ranks[3]->pid(), SIGKILL);
  for (size_t rank : {0, 1, 2}) expect_group(*ranks[rank], "ranks 0, 1, 2 of epoch 1");
  for (size_t rank : {0, 1, 2}) EXPECT_EQ(ranks[rank]->next_line(), "running");
  kill(ranks[1]->pid(), SIGKILL);
  for (size_t rank : {0, 2}) expect_group(*ranks[rank], "ranks 0, 2 of epoch 2");
  for (size_t rank : {0, 2}) EXPECT_EQ(ranks[rank]->next_line(), "ok");
}

TEST(RegroupWithACoordinator, WithTheDefaultPolicyADeathIsTheEnd) {
  const Office office(3, OnLoss::end_job);
  Processes ranks = start(3, 1, [&](Place& place) { office.tell(place); });
  kill(ranks[1]->pid(), SIGKILL);
  for (size_t rank : {0, 2}) {
    const std::string line = ranks[rank]->next_line();
    EXPECT_TRUE(line.starts_with("PeerLost: rank 1 on host ")) << line;
  }
}

// ---- how long it takes: for the reader, not for the verdict ----

void report(const char* what, std::vector<double> ms) {
  std::sort(ms.begin(), ms.end());
  const auto at = [&](double part) { return ms[static_cast<size_t>(part * static_cast<double>(ms.size() - 1))]; };
  std::cout << fmt::format(
      "from the notice to the new group, {}: {} tries, median {:.1f} ms, 10 % {:.1f}, 90 % {:.1f}, "
      "longest {:.1f}\n",
      what, ms.size(), at(0.5), at(0.1), at(0.9), ms.back());
}

/// TRIES=50 for a distribution.
void measure(const char* what, bool desk) {
  const char* const tries = std::getenv("TRIES");
  std::vector<double> all;
  for (int attempt = 0; attempt < (tries != nullptr ? std::atoi(tries) : 5); attempt++) {
    std::optional<Office> office;
    if (desk) office.emplace(4, OnLoss::change_crew, true);
    Processes ranks = start(4, 1, [&](Place& place) {
      if (office) office->tell(place);
    });
    kill(ranks[1]->pid(), SIGKILL);
    double longest = 0;
    for (size_t rank : {0, 2, 3}) longest = std::max(longest, expect_group(*ranks[rank], "ranks 0, 2, 3 of epoch 1"));
    all.push_back(longest);
  }
  report(what, all);
}

TEST(RegroupTime, OneMachineOfFour) { measure("4 ranks on one machine", false); }
TEST(RegroupTime, OneMachineOfFourWithADesk) { measure("4 ranks on one machine, with a launcher's desk", true); }

}  // namespace
}  // namespace trireme::cluster::tests
