// label: unit
// Members at their doors, and whoever asks.
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>
#include <sys/resource.h>
#include <unistd.h>

#include <ctime>
#include <memory>
#include <thread>

#include <trireme/base/unix_socket.h>
#include <trireme/cluster/doors.h>
#include <trireme/cluster/launching/launcher.h>
#include <trireme/cluster/status_door.h>

#include "../comm/process.h"

namespace trireme::cluster::tests {
namespace {

MemberMetrics member_of(const std::string& job, Member::Kind kind, int rank, double updates, double age = 0) {
  return {job_id(job),
          {.kind = kind, .rank = rank, .host = "a host", .pid = getpid()},
          metrics::Snapshot({{.name = "updates", .unit = "updates", .value = updates}}),
          age};
}

/// Of these jobs: others may run on this machine.
std::vector<MemberMetrics> asked(const std::vector<std::string>& jobs) {
  std::vector<MemberMetrics> mine;
  for (const MemberMetrics& member : ask_for_status(Seconds(5)).members)
    for (const std::string& job : jobs)
      if (member.job == job_id(job)) mine.push_back(member);
  return mine;
}

TEST(StatusDoor, EveryMemberOfEveryJobAnswersOnce) {
  const std::string one = random_name(), two = random_name();
  std::vector<std::unique_ptr<StatusDoor>> doors;
  const auto open = [&](std::vector<MemberMetrics> members) {
    doors.push_back(std::make_unique<StatusDoor>([members] { return members; }));
  };
  open({member_of(one, Member::server, 0, 1)});
  open({member_of(one, Member::worker, 10, 2)});
  open({member_of(one, Member::worker, 9, 3)});
  open({member_of(two, Member::worker, 0, 4)});
  // A coordinator has older news of one that answers itself, and of one elsewhere.
  open({member_of(one, Member::worker, 9, 0, 0.7), member_of(one, Member::worker, 11, 5, 0.7)});
  std::vector<std::pair<std::string, double>> found;
  for (const MemberMetrics& member : asked({one})) {
    found.emplace_back(short_name(member.member), member.snapshot.total("updates").value);
    EXPECT_EQ(member.member.host, "a host");
    EXPECT_EQ(member.member.pid, getpid());
  }
  EXPECT_EQ(found, (std::vector<std::pair<std::string, double>>{
                       {"rank 9", 3}, {"rank 10", 2}, {"rank 11", 5}, {"server 0", 1}}));
  EXPECT_EQ(asked({one, two}).size(), 5u);
  const auto line = nlohmann::json::parse(line_of(asked({two})[0]));
  EXPECT_EQ(line["job"], job_id(two));
  EXPECT_EQ(line["member"], "rank 0");
  EXPECT_EQ(line["metrics"]["updates"], 4);
  doors.clear();
  EXPECT_TRUE(asked({one, two}).empty());
}

TEST(StatusDoor, ALargeSnapshotArrivesWhole) {
  const std::string job = random_name();
  std::vector<metrics::Entry> entries;
  for (int i = 0; i < 1000; i++)
    entries.push_back({.name = "counter " + std::to_string(i), .unit = "things", .value = static_cast<double>(i)});
  MemberMetrics many = member_of(job, Member::worker, 0, 1);
  many.snapshot = metrics::Snapshot(entries);
  const StatusDoor door([many] { return std::vector{many, many}; });
  ASSERT_EQ(asked({job}).size(), 1u);
  EXPECT_EQ(asked({job})[0].snapshot, many.snapshot);
}

/// A visitor that cannot be let in stays at the door, which poll() says again and again.
TEST(StatusDoor, WithoutADescriptorLeftItSleepsAndAnswersLater) {
  using trireme::tests::Process;
  Process process([](const Process::Say& say) {
    const StatusDoor door([] { return std::vector{member_of("job", Member::worker, 0, 7)}; });
    rlimit before{};
    getrlimit(RLIMIT_NOFILE, &before);
    const rlimit none{3, before.rlim_max};  // all of which are taken
    setrlimit(RLIMIT_NOFILE, &none);
    say("full");
    const std::clock_t start = std::clock();
    std::this_thread::sleep_for(std::chrono::milliseconds(800));
    say(fmt::format("{}", (std::clock() - start) * 1000 / CLOCKS_PER_SEC));  // of the processor's
    setrlimit(RLIMIT_NOFILE, &before);
    say("room");
    pause();
  });
  ASSERT_EQ(process.next_line(), "full");
  const Descriptor visitor = open_unix_socket();
  for (const Door& door : doors_of("status/"))
    if (door.process == process.pid()) ASSERT_TRUE(connect_to(visitor.get(), door.name));
  EXPECT_LT(std::stoi(process.next_line()), 200);
  ASSERT_EQ(process.next_line(), "room");
  const auto answer = ask_process(process.pid(), Seconds(10));
  ASSERT_TRUE(answer);
  EXPECT_EQ(answer->snapshot.total("updates").value, 7);
}

}  // namespace
}  // namespace trireme::cluster::tests
