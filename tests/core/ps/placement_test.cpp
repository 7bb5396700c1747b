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
    for (const Charge& charge : place(servers, 1)) {
      EXPECT_EQ(charge.primary, charge.shard);
      EXPECT_NE(charge.backup, charge.primary);
      backups[static_cast<size_t>(charge.backup)]++;
    }
    for (int count : backups) EXPECT_EQ(count, 1);  // the work is even
  }
  for (const Charge& charge : place(3, 0)) EXPECT_EQ(charge.backup, kNobody);
}

TEST(Placement, BackupsAreOnOtherHostsWhereThereAreSome) {
  const std::vector<std::string> hosts = {"a", "a", "b", "b"};
  for (const Charge& charge : place(4, 1, hosts))
    EXPECT_NE(hosts[static_cast<size_t>(charge.primary)], hosts[static_cast<size_t>(charge.backup)]);
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
  const Charge first = place(3, 1)[0];
  const Move promoted = after_death(first, 0);
  EXPECT_EQ(promoted.why, Why::promoted);
  EXPECT_EQ(promoted.charge, (Charge{.shard = 0, .epoch = 2, .primary = 1}));
  EXPECT_NE(promoted.reason().find("server 1, answers for part 0 from epoch 2"), std::string::npos);
  const Move appointed = appoint(promoted.charge, {false, false, true});
  EXPECT_EQ(appointed.charge.filling, 2);
  EXPECT_EQ(after_death(appointed.charge, 1).why, Why::lost) << "one that is being filled has not got all";
  EXPECT_EQ(after_death(appointed.charge, 2).charge, promoted.charge);
  const Move full = filled(appointed.charge);
  EXPECT_EQ(full.charge, (Charge{.shard = 0, .epoch = 3, .primary = 1, .backup = 2}));
  EXPECT_EQ(after_death(full.charge, 2).why, Why::alone);
  EXPECT_EQ(after_death(full.charge, 0).why, Why::nothing);
  EXPECT_EQ(appoint(promoted.charge, {false, false, false}).why, Why::nobody_left);
}

TEST(Placement, OnlyThePrimaryOfTheNewestEpochAccepts) {
  const Charge charge{.shard = 0, .epoch = 4, .primary = 1, .backup = 2, .filling = kNobody};
  EXPECT_EQ(hear(charge, 1, 3).verdict, Verdict::accept);
  EXPECT_EQ(hear(charge, 1, 3).epoch, 4u);  // who knows an old one learns the new one
  EXPECT_EQ(hear(charge, 1, 5).verdict, Verdict::fenced);
  EXPECT_EQ(hear(charge, 2, 4).verdict, Verdict::wait);
  EXPECT_EQ(hear(charge, 0, 4).verdict, Verdict::elsewhere);
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
