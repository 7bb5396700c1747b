#pragma once
// How many workers a launcher keeps in an elastic job, and when the next one is started: pure
// functions, the clock passed in. The desk says who is in the crew (cluster/coordination/crews.h); this is about
// processes.
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include <trireme/base/clock.h>

namespace trireme::cluster {

/// What a launcher does when a worker ends badly.
enum class OnFailure {
  stop,     // all end
  go_on,    // "continue": the others go on, as long as enough are left
  replace,  // they go on, and another one is started in its place
};

/// stop, continue or replace. Throws InvalidArgument.
OnFailure on_failure_named(const std::string& name);

/// How many workers a job may have.
struct Elasticity {
  OnFailure on_failure = OnFailure::stop;
  int least = 1, most = 1;     // workers that a crew may have; `most` also what the target may be set to
  int spares = 0;              // processes beyond the target, which are ready and wait
  Seconds rejoin_timeout{60};  // with fewer than `least`, for others to come

  bool elastic() const { return on_failure != OnFailure::stop; }
};

/// What whoever decides about the crew says at one moment.
struct CrewView {
  uint64_t epoch = 0;
  std::vector<int> ranks;   // of the crew, in order; also those that have come to a good end
  int target = 0;           // workers that are wanted here
  int more = 0;             // that somebody has asked for besides, so far
  bool complete = false;    // all of the first crew had come
  bool over = false;        // the crew has done its work
  bool closing = false;     // it saves, and ends: nobody is to come any more
  std::vector<int> lost{};  // given up, or dead: nobody waits for them any more
  std::string failure;      // why the job cannot go on, a sentence; "": it does
};

constexpr int kMostWorkers = 256;      // that a launcher keeps at a time, spares included
constexpr Seconds kEarly{10};          // a worker that dies sooner after its start has not got anywhere
constexpr int kMostEarlyDeaths = 5;    // in a row: then no more are started
constexpr Seconds kFirstBackOff{0.5};  // before the one after an early death; twice as long after each further one

/// How many workers there may be: "4" is 4 to 4, "2:8" is 2 to 8.
struct Workers {
  int least = 0, most = 0;
  bool range = false;  // it was given as one
};
/// Throws InvalidArgument.
Workers workers_named(const std::string& text);

/// Throws InvalidArgument for what cannot be, with `ranks` in the first crew.
void check_elasticity(const Elasticity& elasticity, int ranks);

/// Of a job on one machine: one worker a core, within the limits.
int first_crew(int least, int most, int cores);

/// Processes that there should be: of those that died, `unreplaced` are not to come back.
int places(const Elasticity& elasticity, int target, int unreplaced);

/// What deaths so far mean for the next start.
struct BackOff {
  int early = 0;                   // deaths in a row that came soon after a start
  Clock::time_point not_before{};  // of the next start
  bool given_up() const { return early >= kMostEarlyDeaths; }
};

/// After the death of a worker that began at `began`. `rowed`: it had taken part in an update, which is getting
/// somewhere.
BackOff after_death(const BackOff& before, Clock::time_point now, Clock::time_point began, bool rowed);

/// What to do now to have as many processes as there are places.
struct NextStart {
  int start = 0;                                // so many now
  std::optional<Clock::time_point> look_again;  // when there is more to start later
};
NextStart next_start(Clock::time_point now, int living, int places, const BackOff& back_off);

}  // namespace trireme::cluster
