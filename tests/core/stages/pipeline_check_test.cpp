// label: unit
// The checker against a second opinion, over schedules that were damaged in every way there is; and its sentences.
#include <gtest/gtest.h>

#include <algorithm>
#include <random>

#include <trireme/stages/check.h>
#include <trireme/stages/schedule_file.h>
#include <trireme/stages/timeline.h>

#include "schedule_oracle.h"

namespace trireme::stages {
namespace {

using Name = ScheduleSpec::Name;

Schedule rows(const std::string& head, const std::string& lines) {
  return schedule_from_text("trireme-schedule 1\n" + head + "\n" + lines, "test");
}

void refused(const Schedule& schedule, const std::string& reason) {
  const Verdict verdict = check(schedule);
  EXPECT_FALSE(verdict.ok);
  EXPECT_EQ(verdict.reason, reason);
  EXPECT_TRUE(verdict.peak.empty());
  EXPECT_FALSE(test::Oracle(schedule).valid());
}

constexpr const char* kTwo = "stages 2\nmicro 2";
constexpr const char* kFirst = "stage 0: F0 sa0 F1 sa1 rg0 B0 rg1 B1\n";
constexpr const char* kSecond = "stage 1: ra0 F0 ra1 F1 B0 sg0 B1 sg1\n";

TEST(Check, TakesWhatIsRight) {
  const Verdict verdict = check(rows(kTwo, std::string(kFirst) + kSecond));
  EXPECT_TRUE(verdict.ok) << verdict.reason;
  EXPECT_EQ(verdict.reason, "");
  EXPECT_EQ(verdict.peak, (std::vector<int>{2, 2}));
  EXPECT_EQ(check(rows("stages 1\nmicro 2", "stage 0: F0 B0 F1 I1 W1")).peak, (std::vector<int>{1}));
}

TEST(Check, HoldsActivationsUntilTheirWeightPart) {
  EXPECT_EQ(check(rows("stages 1\nmicro 2", "stage 0: F0 I0 F1 I1 W1 W0")).peak, (std::vector<int>{2}));
}

TEST(Check, NamesWhatIsMissingOrTwice) {
  refused(rows(kTwo, std::string("stage 0: F0 sa0 F1 sa1 rg0 B0 rg1\n") + kSecond),
          "stage 0: there is no backward of micro-batch 1, chunk 0");
  refused(rows(kTwo, std::string("stage 0: F0 sa0 F1 F0 sa1 rg0 B0 rg1 B1\n") + kSecond),
          "stage 0: forward of micro-batch 0, chunk 0 stands there twice");
  refused(rows(kTwo, std::string("stage 0: F0 F1 sa1 rg0 B0 rg1 B1\n") + kSecond),
          "stage 0: there is no send-activation of micro-batch 0, chunk 0");
  refused(rows(kTwo, std::string(kFirst) + "stage 1: ra0 F0 ra1 F1 I0 sg0 B1 sg1"),
          "stage 1: there is no backward-weight of micro-batch 0, chunk 0");
  refused(rows(kTwo, std::string(kFirst) + "stage 1: ra0 F0 ra1 F1 B0 W0 sg0 B1 sg1"),
          "stage 1: micro-batch 0, chunk 0 has a backward and a backward-weight besides");
}

TEST(Check, NamesWhatIsInTheWrongOrder) {
  refused(rows(kTwo, std::string("stage 0: sa0 F0 F1 sa1 rg0 B0 rg1 B1\n") + kSecond),
          "stage 0: send-activation of micro-batch 0, chunk 0 comes before its forward");
  refused(rows(kTwo, std::string(kFirst) + "stage 1: F0 ra0 ra1 F1 B0 sg0 B1 sg1"),
          "stage 1: forward of micro-batch 0, chunk 0 comes before its receive-activation");
  refused(rows(kTwo, std::string(kFirst) + "stage 1: ra0 B0 F0 ra1 F1 sg0 B1 sg1"),
          "stage 1: backward of micro-batch 0, chunk 0 comes before its forward");
  refused(rows(kTwo, std::string(kFirst) + "stage 1: ra0 F0 ra1 F1 W0 I0 sg0 B1 sg1"),
          "stage 1: backward-weight of micro-batch 0, chunk 0 comes before its backward-input");
  refused(rows(kTwo, std::string(kFirst) + "stage 1: ra1 F1 ra0 F0 B0 sg0 B1 sg1"),
          "stage 0 sends the activation of micro-batch 1, chunk 0 after that of micro-batch 0, chunk 0, but stage 1 "
          "receives it before");
  refused(rows("stages 1\nmicro 1\nchunks 2", "stage 0: F0.1 F0.0 B0.1 B0.0"),
          "stage 0: forward of micro-batch 0, chunk 1 comes before that of chunk 0, whose output it needs");
  refused(rows("stages 1\nmicro 1\nchunks 2", "stage 0: F0.0 F0.1 B0.0 B0.1"),
          "stage 0: backward of micro-batch 0, chunk 0 comes before that of chunk 1, whose gradient it needs");
}

TEST(Check, NamesWhatCrossesWhereNobodyIs) {
  refused(rows(kTwo, std::string("stage 0: ra0 F0 sa0 F1 sa1 rg0 B0 rg1 B1\n") + kSecond),
          "stage 0: receive-activation of micro-batch 0, chunk 0: there is nobody to receive it from");
  refused(rows(kTwo, std::string(kFirst) + "stage 1: ra0 F0 sa0 ra1 F1 B0 sg0 B1 sg1"),
          "stage 1: send-activation of micro-batch 0, chunk 0: there is nobody to send it to");
  refused(rows("stages 1\nmicro 1\nchunks 2", "stage 0: F0.0 sa0.0 ra0.1 F0.1 B0.1 B0.0"),
          "stage 0: send-activation of micro-batch 0, chunk 0: there is nobody to send it to");
}

TEST(Check, NamesWhoIsInADeadlock) {
  refused(
      rows(kTwo, "stage 0: F0 sa0 F1 sa1 rg0 B0 rg1 B1\nstage 1: ra0 F0 B0 sg0 ra1 F1 B1 sg1"),
      "a deadlock with sends that wait for their receives: stage 0 is at the send-activation of micro-batch 1, chunk "
      "0 and waits for stage 1; stage 1 is at the send-gradient of micro-batch 0, chunk 0 and waits for stage 0");
}

TEST(Check, RefusesNumbersThatCannotBe) {
  Schedule s = rows(kTwo, std::string(kFirst) + kSecond);
  s.rows[1][3].micro = 2;
  refused(s, "stage 1: forward of micro-batch 2, chunk 0: micro-batches are 0 to 1");
  s.rows[1][3] = {Kind::forward, 1, -1};
  refused(s, "stage 1: forward of micro-batch 1, chunk -1: chunks are 0 to 0");
  s.rows[1][3] = {static_cast<Kind>(200), 1, 0};
  refused(s, "stage 1: there is no action 200");
  s.rows.pop_back();
  refused(s, "there are 1 rows for 2 stages");
  EXPECT_FALSE(check(Schedule{"", 0, 1, 1, {}}).ok);
  EXPECT_FALSE(check(Schedule{"", 1, 1 << 30, 1, {{}}}).ok);
  EXPECT_FALSE(check(Schedule{"", 1, 1, 1 << 30, {{}}}).ok);
}

// ---- damage ----

class Damage {
 public:
  explicit Damage(unsigned seed) : random_(seed) {}

  int below(size_t count) { return static_cast<int>(random_() % count); }

  Schedule sound() {
    const int p = 1 + below(4), m = 1 + below(5), v = 1 + below(3);
    switch (below(4)) {
      case 0:
        return make_schedule({Name::gpipe, v, ""}, p, m);
      case 1:
        return make_schedule({Name::one_f_one_b, 1, ""}, p, m);
      case 2:
        return make_schedule({Name::interleaved, v, ""}, p, m);
      default:
        return make_schedule({Name::zero_bubble, 1, ""}, p, m);
    }
  }

  void damage(Schedule& s) {
    auto& row = s.rows[below(s.rows.size())];
    if (row.empty()) return;
    const int i = below(row.size()), j = below(row.size());
    switch (below(9)) {
      case 0:
        row.erase(row.begin() + i);
        break;
      case 1: {
        const Action again = row[i];
        row.insert(row.begin() + j, again);
        break;
      }
      case 2:
        std::swap(row[i], row[j]);
        break;
      case 3:  // neighbours: the nearest miss
        std::swap(row[i], row[std::min<size_t>(i + 1, row.size() - 1)]);
        break;
      case 4:
        row[i].micro += 1 - 2 * below(2);
        break;
      case 5:
        row[i].chunk += 1 - 2 * below(2);
        break;
      case 6:
        row[i].kind = static_cast<Kind>(below(kKinds));
        break;
      case 7:
        std::rotate(row.begin() + std::min(i, j), row.begin() + std::min(i, j) + 1, row.begin() + std::max(i, j) + 1);
        break;
      default: {  // to another stage
        auto& other = s.rows[below(s.rows.size())];
        const Action moved = row[i];
        row.erase(row.begin() + i);
        other.insert(other.begin() + below(other.size() + 1), moved);
      }
    }
  }

 private:
  std::mt19937 random_;
};

TEST(Check, RefusesDamagedSchedulesAndNothingElse) {
  Damage by(7);
  int refusals = 0, still_valid = 0, silent = 0;
  for (int round = 0; round < 30000; round++) {
    Schedule s = by.sound();
    for (int times = 1 + (round % 3 == 0) + (round % 7 == 0); times > 0; times--) by.damage(s);
    const Verdict verdict = check(s);
    ASSERT_EQ(verdict.ok, test::Oracle(s).valid()) << to_text(s) << verdict.reason;
    (verdict.ok ? still_valid : refusals)++;
    silent += !verdict.ok && verdict.reason.find("stage") == std::string::npos;
    if (verdict.ok) {
      EXPECT_GT(simulate(s).total, 0);
    } else {
      try {
        simulate(s);  // an error or a picture of nonsense, but an end
      } catch (const std::exception&) {
      }
    }
  }
  EXPECT_EQ(silent, 0);  // every reason names a stage
  EXPECT_GT(refusals, 15000);
  EXPECT_GT(still_valid, 1000);
}

}  // namespace
}  // namespace trireme::stages
