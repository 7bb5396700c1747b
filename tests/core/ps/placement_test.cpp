// label: unit
// Who keeps which part, and what becomes of it.
#include <gtest/gtest.h>

#include <trireme/ps/placement.h>

namespace trireme::ps::tests {
namespace {

using Verdict = Hearing::Verdict;
using Why = Move::Why;

TEST(Placement, EachPartHasABackupOnAnotherServer) {
  for (int servers = 2; servers < 6; servers++) {
    std::vector<int> backups(static_cast<size_t>(servers));
    for (const Seat& seat : place(servers, 1)) {
      EXPECT_EQ(seat.primary, seat.shard);
      EXPECT_NE(seat.backup, seat.primary);
      backups[static_cast<size_t>(seat.backup)]++;
    }
    for (int count : backups) EXPECT_EQ(count, 1);  // the work is even
  }
  for (const Seat& seat : place(3, 0)) EXPECT_EQ(seat.backup, kNobody);
}

TEST(Placement, BackupsAreOnOtherHostsWhereThereAreSome) {
  const std::vector<std::string> hosts = {"a", "a", "b", "b"};
  for (const Seat& seat : place(4, 1, hosts))
    EXPECT_NE(hosts[static_cast<size_t>(seat.primary)], hosts[static_cast<size_t>(seat.backup)]);
  const std::vector<std::string> one = {"a", "a"};
  EXPECT_EQ(place(2, 1, one)[0].backup, 1);
}

TEST(Placement, WhatCannotBeIsSaid) {
  EXPECT_EQ(why_no_replicas(0, 1, true), "");
  EXPECT_EQ(why_no_replicas(1, 2, false), "");
  EXPECT_NE(why_no_replicas(1, 1, false).find("2 servers at least"), std::string::npos);
  EXPECT_NE(why_no_replicas(2, 5, false).find("one backup"), std::string::npos);
  EXPECT_NE(why_no_replicas(1, 2, true).find("on several"), std::string::npos);
}

TEST(Placement, ABackupTakesOverAndGetsABackup) {
  const Seat first = place(3, 1)[0];
  const Move promoted = after_death(first, 0);
  EXPECT_EQ(promoted.why, Why::promoted);
  EXPECT_EQ(promoted.seat, (Seat{.shard = 0, .epoch = 2, .primary = 1}));
  EXPECT_NE(promoted.reason().find("server 1, answers for part 0 from epoch 2"), std::string::npos);
  const Move appointed = appoint(promoted.seat, {false, false, true});
  EXPECT_EQ(appointed.seat.filling, 2);
  EXPECT_EQ(after_death(appointed.seat, 1).why, Why::lost) << "one that is being filled has not got all";
  EXPECT_EQ(after_death(appointed.seat, 2).seat, promoted.seat);
  const Move full = filled(appointed.seat);
  EXPECT_EQ(full.seat, (Seat{.shard = 0, .epoch = 3, .primary = 1, .backup = 2}));
  EXPECT_EQ(after_death(full.seat, 2).why, Why::alone);
  EXPECT_EQ(after_death(full.seat, 0).why, Why::nothing);
  EXPECT_EQ(appoint(promoted.seat, {false, false, false}).why, Why::nobody_left);
}

TEST(Placement, OnlyThePrimaryOfTheNewestEpochAccepts) {
  const Seat seat{.shard = 0, .epoch = 4, .primary = 1, .backup = 2, .filling = kNobody};
  EXPECT_EQ(hear(seat, 1, 3).verdict, Verdict::accept);
  EXPECT_EQ(hear(seat, 1, 3).epoch, 4u);  // who knows an old one learns the new one
  EXPECT_EQ(hear(seat, 1, 5).verdict, Verdict::fenced);
  EXPECT_EQ(hear(seat, 2, 4).verdict, Verdict::wait);
  EXPECT_EQ(hear(seat, 0, 4).verdict, Verdict::elsewhere);
  EXPECT_EQ(hear({.shard = 0, .epoch = 4, .primary = 1, .filling = 2}, 2, 4).verdict, Verdict::elsewhere);
}

TEST(Placement, WithABackupNothingIsAcknowledgedBeforeItIsThere) {
  EXPECT_FALSE(may_acknowledge({.primary = 0, .backup = 1}, 7, 6));
  EXPECT_TRUE(may_acknowledge({.primary = 0, .backup = 1}, 7, 7));
  EXPECT_TRUE(may_acknowledge({.primary = 0}, 7, 0));
}

TEST(Placement, TheBackupIsAskedFirst) {
  EXPECT_EQ(whom_to_ask(4, 1, 3), (std::vector{3, 2, 0, 1}));
  EXPECT_EQ(whom_to_ask(3, 0, kNobody), (std::vector{1, 2, 0}));
}

}  // namespace
}  // namespace trireme::ps::tests
