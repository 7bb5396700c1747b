// label: unit
// Members at their doors, and whoever asks.
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>
#include <unistd.h>

#include <memory>

#include <trireme/cluster/launching/launcher.h>
#include <trireme/cluster/status_door.h>

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

}  // namespace
}  // namespace trireme::cluster::tests
