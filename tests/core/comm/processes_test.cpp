// label: multiproc
// Ranks as processes: how they meet, and what the others hear when one of them dies, stops or lies.
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/un.h>

#include <csignal>
#include <cstring>
#include <functional>
#include <memory>
#include <random>

#include <trireme/base/error.h>
#include <trireme/base/unix_socket.h>
#include <trireme/comm/shm/communicator.h>
#include <trireme/comm/shm/rendezvous.h>
#include <trireme/space/layout.h>

#include "process.h"

namespace trireme::tests {
namespace {

using Group = comm::shm::Communicator;
using comm::shm::meet;

std::string job_name() {
  return fmt::format("{}-{}", testing::UnitTest::GetInstance()->current_test_info()->name(), getpid());
}

std::unique_ptr<Process> start_rank(const std::string& job, int rank, int ranks, Seconds timeout,
                                    const std::function<void(Group&, const Process::Say&)>& body) {
  return std::make_unique<Process>([&](const Process::Say& say) {
    Group group(meet(job, rank, ranks, timeout), rank, ranks, {.timeout = timeout});
    body(group, say);
  });
}

std::vector<std::unique_ptr<Process>> start_ranks(int ranks, Seconds timeout,
                                                  const std::function<void(Group&, const Process::Say&)>& body) {
  std::vector<std::unique_ptr<Process>> processes;
  for (int rank = 0; rank < ranks; rank++) processes.push_back(start_rank(job_name(), rank, ranks, timeout, body));
  return processes;
}

void sum_ones(Group& group) {
  std::vector<float> data(70001, 1);
  group.allreduce(data.data(), data.size(), DType::f32, Op::sum, "ones");
  for (float x : data)
    if (x != static_cast<float>(group.size())) fail<Error>("{} instead of {}", x, group.size());
}

/// Says "running" after a few rounds, then goes on for ever.
void sum_for_ever(Group& group, const Process::Say& say) {
  for (int i = 0;; i++) {
    sum_ones(group);
    if (i == 5) say("running");
  }
}

void expect_within(const std::string& text, const std::vector<std::string>& parts) {
  for (const std::string& part : parts)
    EXPECT_NE(text.find(part), std::string::npos) << "no \"" << part << "\" in: " << text;
}

// ---- working ----

TEST(Processes, AllreduceOverProcesses) {
  for (int ranks : {2, 3, 4})
    for (auto& process : start_ranks(ranks, Seconds(30), [](Group&group, const auto&) {
           for (int i = 0; i < 20; i++) sum_ones(group);
           const auto block = group.allocate(40000, "memory");
           auto* mine = reinterpret_cast<int32_t*>(block.parts[static_cast<size_t>(group.rank())]);
           for (int32_t i = 0; i < 10000; i++) mine[i] = i * (group.rank() + 1);
           group.allreduce(mine, 10000, DType::i32, Op::sum, "in place");
           const int32_t n = group.size() * (group.size() + 1) / 2;
           for (int32_t i = 0; i < 10000; i++)
             if (mine[i] != i * n) fail<Error>("element {} is {}", i, mine[i]);
         }))
      EXPECT_EQ(process->next_line(), "ok");
}

TEST(Processes, OneRankMeetsNobody) {
  Process alone([](const auto&) { Group group(meet("alone", 0, 1, Seconds(1)), 0, 1); });
  EXPECT_EQ(alone.next_line(), "ok");
}

// ---- dying and stopping ----

TEST(Processes, AKilledRankIsNoticedByAll) {
  auto processes = start_ranks(3, Seconds(60), sum_for_ever);
  for (auto& process : processes) ASSERT_EQ(process->next_line(), "running");
  const auto begin = Clock::now();
  kill(processes[1]->pid(), SIGKILL);
  for (size_t rank : {0, 2})
    expect_within(processes[rank]->next_line(),
                  {"PeerLost: rank 1", fmt::format("process {}", processes[1]->pid()), "died", "'ones'"});
  EXPECT_LT(seconds_since(begin), 2);
  EXPECT_EQ(processes[1]->next_line(), "");
}

TEST(Processes, ARankKilledInTheMiddleOfAMessageIsNoticed) {
  auto processes = start_ranks(2, Seconds(60), [](Group& group, const auto& say) {
    say("running");
    std::byte room[100];
    if (group.rank() == 0) group.receive(room, 100, DType::u8, 1, "activations");
    if (group.rank() == 1) pause();
  });
  for (auto& process : processes) ASSERT_EQ(process->next_line(), "running");
  const auto begin = Clock::now();
  kill(processes[1]->pid(), SIGKILL);
  expect_within(processes[0]->next_line(), {"PeerLost: rank 1", "receive 'activations'"});
  EXPECT_LT(seconds_since(begin), 2);
}

TEST(Processes, AStoppedRankIsATimeoutThatSaysSo) {
  auto processes = start_ranks(3, Seconds(1), sum_for_ever);
  for (auto& process : processes) ASSERT_EQ(process->next_line(), "running");
  kill(processes[2]->pid(), SIGSTOP);
  const std::string first = processes[0]->next_line(), second = processes[1]->next_line();
  const bool timed_out[] = {first.starts_with("Timeout"), second.starts_with("Timeout")};
  EXPECT_TRUE(timed_out[0] || timed_out[1]) << first << "\n" << second;
  for (const std::string& line : {first, second}) {  // the one that gave up later may hear of the other's end first
    if (line.starts_with("Timeout"))
      expect_within(line, {"rank 2", "stopped", "1 s"});
    else
      expect_within(line, {"PeerLost"});
  }
}

// ---- meeting ----

Descriptor connect_to(const std::string& job) {
  const std::string path = fmt::format("trireme/{}/{:016x}", getuid(), space::hash_text(job));
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::memcpy(address.sun_path + 1, path.data(), path.size());
  const auto length = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + path.size());
  for (int i = 0; i < 5000; i++) {
    Descriptor socket_(socket(AF_UNIX, SOCK_SEQPACKET, 0));
    if (connect(socket_.get(), reinterpret_cast<const sockaddr*>(&address), length) == 0) return socket_;
    usleep(1000);
  }
  return {};
}

TEST(Meeting, GarbageDoesNotDisturb) {
  const std::string job = job_name();
  const auto work = [](Group& group, const auto&) { sum_ones(group); };
  const auto first = start_rank(job, 0, 2, Seconds(30), work);
  for (size_t bytes : {0, 1, 16, 17, 5000}) {
    const Descriptor socket_ = connect_to(job);
    ASSERT_TRUE(socket_);
    const std::vector<char> garbage(bytes, 'x');
    EXPECT_EQ(send(socket_.get(), garbage.data(), bytes, 0), static_cast<ssize_t>(bytes));
  }
  const Descriptor silent = connect_to(job);
  const auto second = start_rank(job, 1, 2, Seconds(30), work);
  EXPECT_EQ(first->next_line(), "ok");
  EXPECT_EQ(second->next_line(), "ok");
}

/// Greetings of any size and content but that of a rank.
TEST(MeetingFuzz, AHundredThousandStrangersDoNotDisturb) {
  const std::string job = job_name();
  const auto first = start_rank(job, 0, 2, Seconds(60), [](Group& group, const auto&) { sum_ones(group); });
  std::mt19937_64 random(20261119);
  const uint64_t kMagic = 0x3230656d65726974;
  for (int i = 0; i < 100'000; i++) {
    std::array<char, 64> bytes;
    for (char& byte : bytes) byte = static_cast<char>(random());
    size_t size = 1 + random() % bytes.size();
    if (random() % 2 == 0) {
      std::memcpy(bytes.data(), &kMagic, sizeof kMagic);
      if (size >= 16) size = 15;  // too short: with the right magic and size it is a rank's, right or wrong
    }
    const Descriptor stranger = connect_to(job);
    ASSERT_TRUE(stranger) << i;
    send(stranger.get(), bytes.data(), size, MSG_NOSIGNAL);
  }
  const auto second = start_rank(job, 1, 2, Seconds(60), [](Group& group, const auto&) { sum_ones(group); });
  EXPECT_EQ(first->next_line(), "ok");
  EXPECT_EQ(second->next_line(), "ok");
}

TEST(Meeting, TwoProcessesWithTheSameRankAreRefused) {
  const std::string job = job_name();
  const auto nothing = [](Group&, const auto&) {};
  const auto first = start_rank(job, 0, 3, Seconds(2), nothing), one = start_rank(job, 1, 3, Seconds(2), nothing),
             other = start_rank(job, 1, 3, Seconds(2), nothing);
  expect_within(first->next_line(), {"Mismatch: two processes claim to be rank 1"});
  const std::string a = one->next_line(), b = other->next_line();
  EXPECT_NE(a.starts_with("Mismatch: two processes claim to be rank 1"),
            b.starts_with("Mismatch: two processes claim to be rank 1"))
      << a << "\n"
      << b;
}

TEST(Meeting, DifferentWorldSizesAreRefused) {
  const std::string job = job_name();
  const auto nothing = [](Group&, const auto&) {};
  const auto first = start_rank(job, 0, 2, Seconds(5), nothing), second = start_rank(job, 1, 3, Seconds(5), nothing);
  for (Process* process : {first.get(), second.get()})
    expect_within(process->next_line(), {"Mismatch: rank 1 was told that there are 3 ranks, rank 0 that there are 2"});
}

TEST(Meeting, WithoutRankZeroTimesOut) {
  const std::string job = job_name();
  const auto lonely = start_rank(job, 1, 2, Seconds(0.3), [](Group&, const auto&) {});
  expect_within(lonely->next_line(), {"Timeout: rank 1 found no rank 0", job, "0.3 s"});
}

TEST(Meeting, MissingRanksAreListed) {
  const std::string job = job_name();
  const auto nothing = [](Group&, const auto&) {};
  const auto first = start_rank(job, 0, 4, Seconds(0.6), nothing), third = start_rank(job, 2, 4, Seconds(0.6), nothing);
  expect_within(first->next_line(), {"Timeout: rank 1, 3 did not come", job, "0.6 s", "all 4 ranks"});
  EXPECT_NE(third->next_line(), "ok");
}

/// However many of them come, one after another.
TEST(Meeting, StrangersDoNotPutOffTheDeadline) {
  const std::string job = job_name();
  const auto first = start_rank(job, 0, 2, Seconds(1), [](Group&, const auto&) {});
  const std::string door = own_name(fmt::format("{:016x}", space::hash_text(job)));
  std::string line = "silence";
  for (const Deadline deadline(Seconds(20)); line == "silence" && !deadline.passed();
       line = first->next_line(Seconds(0)))
    for (int i = 0; i < 16; i++) {  // more than that wait for a turn at any time
      const Descriptor stranger(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_NONBLOCK, 0));
      if (trireme::connect_to(stranger.get(), door)) send(stranger.get(), "x", 1, MSG_NOSIGNAL);
    }
  expect_within(line, {"Timeout: rank 1 did not come"});
}

TEST(Meeting, WithoutADescriptorLeftRankZeroSaysSo) {
  const std::string job = job_name();
  Process first([&](const Process::Say&) {
    const auto segment = std::shared_ptr<Segment>(Segment::create());
    const auto free = static_cast<rlim_t>(Descriptor(dup(0)).get());
    const rlimit limit{free + 1, free + 1};  // room for a listener
    setrlimit(RLIMIT_NOFILE, &limit);
    meet(job, 0, 2, Seconds(20), "", segment);
  });
  const auto second = start_rank(job, 1, 2, Seconds(20), [](Group&, const auto&) {});
  expect_within(first.next_line(), {"error: ", "cannot let anybody in", "Too many open files", "ulimit -n"});
}

TEST(Meeting, TwoJobsDoNotMeet) {
  const std::string job = job_name();
  const auto check = [](float mark) {
    return [mark](Group& group, const auto&) {
      float x = mark;
      group.allreduce(&x, 1, DType::f32, Op::sum, "mark");
      if (x != 2 * mark) fail<Error>("met a rank of another job");
    };
  };
  const auto a0 = start_rank(job + "a", 0, 2, Seconds(20), check(1)),
             b0 = start_rank(job + "b", 0, 2, Seconds(20), check(5));
  const auto b1 = start_rank(job + "b", 1, 2, Seconds(20), check(5)),
             a1 = start_rank(job + "a", 1, 2, Seconds(20), check(1));
  for (Process* process : {a0.get(), a1.get(), b0.get(), b1.get()}) EXPECT_EQ(process->next_line(), "ok");
}

// Ranks that come now could be of either.
TEST(Meeting, TwoRanksZeroOfTheSameJobAreRefused) {
  const std::string job = job_name();
  const auto nothing = [](Group&, const auto&) {};
  const auto first = start_rank(job, 0, 2, Seconds(20), nothing);
  const Descriptor probe = connect_to(job);  // it is there
  const auto second = start_rank(job, 0, 2, Seconds(20), nothing);
  expect_within(second->next_line(), {"Mismatch:", job, "another process is its rank 0", "MASTER_PORT"});
  expect_within(first->next_line(), {"Mismatch:", "two processes claim to be rank 0", "MASTER_PORT"});
}

}  // namespace
}  // namespace trireme::tests
