#pragma once
// Who rows next, as pure functions of (now, workers, the crew as it is, policy), each answer with its reason as a
// sentence. No clock, no I/O, no lock.
//
// A *crew* is the ranks of an epoch: they commit steps together or not at all, so a crew of which one is missing can
// commit nothing. A member that is *lost* ends its crew at once. Without a loss a change is *announced*: the crew goes
// on rowing until it is ready for it, and no change follows before all of the new crew have *confirmed* that they are
// in it. So at any time there is the crew that rows and at most one that was announced, and everybody in a new crew
// has left the one before: two crews never go on side by side.
//
// Too few wait for newcomers. When nobody has come in time, those who are left are a *closing* crew: it makes no step,
// but saves the state that it has, and ends; with that the job has failed.
//
// The one exception: a crew of which nobody is left. Newcomers may go on in its place only where its members are known
// to be dead; those who are merely silent may still row.
#include <cstdint>
#include <string>
#include <vector>

#include <trireme/base/clock.h>
#include <trireme/cluster/coordination/job.h>
#include <trireme/cluster/coordination/membership.h>

namespace trireme::cluster {

/// A worker, as far as crews concern it.
struct Hand {
  int rank = 0;
  Standing standing = Standing::present;
  bool dead = false;       // lost: its process has ended for certain. Otherwise it was silent, and may live
  bool ending = false;     // lost: it has ended, or will have before long, and is counted as dead then
  std::string loss;        // lost: a full sentence about it
  bool ready = true;       // it can row: the first crew from the start, a newcomer when it says so
  bool rowed = true;       // it is or was in a crew that it knows of: the first from the start, a newcomer when it has
                           // confirmed one
  bool drained = false;    // it is to go, when the others can do without it
  bool dismissed = false;  // it has been left out of a crew: it goes, and comes to none again
  bool placed = true;      // its machine is known
  int64_t confirmed = -1;  // the latest epoch that it is in
};

struct CrewPolicy {
  int least = 1;              // fewer do not row
  int target = 1;             // so many are wanted
  Seconds rejoin_timeout{0};  // how long too few wait for newcomers; 0: not at all
  std::string hurry{};        // why they do not wait though they would: a sentence without a full stop
};

/// The crew as it is.
struct CrewBook {
  uint64_t epoch = 0;
  std::vector<int> ranks;     // in order
  std::vector<int> before;    // of an announced change: who rows until it begins
  bool held = false;          // too few are left: nobody rows, and those of `ranks` wait for newcomers
  Clock::time_point since{};  // of that
  std::string losses;         // why, for the crew that comes after it; of a closing crew, why the job ends
  bool closing = false;       // it makes no step, and the job ends with it
};

struct CrewPlan {
  enum Kind {
    stay,     // nothing to do
    change,   // another crew: `ranks`
    hold,     // too few are left: they stop, and wait for newcomers
    give_up,  // they have waited for too long, or cannot go on: the job fails
    over      // the crew has done its work: spares may go
  };
  Kind kind = stay;
  bool announced = false;     // change: it interrupts nobody
  std::vector<int> ranks;     // change: the crew, in order
  std::vector<int> leaving;   // change: who is dismissed by it
  std::string reason;         // a full sentence
  std::string losses{};       // hold: of the reason, who was lost
  std::vector<int> rowing{};  // hold: who was in the crew before an announced change, and may not have left it
  bool closing = false;       // change: to a crew that only saves and ends
};

CrewPlan plan_crew(Clock::time_point now, const std::vector<Hand>& hands, const CrewBook& book,
                   const CrewPolicy& policy);

/// The book once the plan is carried out.
CrewBook book_after(Clock::time_point now, const CrewBook& book, const CrewPlan& plan);

/// Ready, and in no crew.
std::vector<int> spares_of(const std::vector<Hand>& hands, const CrewBook& book);

}  // namespace trireme::cluster
