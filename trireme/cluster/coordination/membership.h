#pragma once
// Who belongs to a job: decisions as pure functions of (now, members, options), each with its reason as a sentence. No
// clock, no I/O, no lock.
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <trireme/base/clock.h>
#include <trireme/cluster/coordination/job.h>

namespace trireme::cluster {

enum class Standing { present, left, lost };

/// A member as the coordinator knows it. Lists of attendees are in the order of registration; who is gone stays listed.
struct Attendee {
  uint64_t id = 0;
  Member member;        // member.rank: own, or assigned, or -1
  std::string address;  // where its connection comes from, without port; "" when not known
  Standing standing = Standing::present;
  Clock::time_point heard;       // last sign of life; of one that gave up, when it did
  bool connected = true;         // false: its stream ended
  std::optional<int> exit_code;  // it said goodbye
  std::string report;            // what it said then
  int reported_rank = -1;        // of which rank an agent said it; -1: of none
  int reported_server = -1;      // of which server; -1: of none. Neither: of itself
  // A worker, as far as crews concern it: see Hand of crews.h.
  bool ready = false, drained = false, dismissed = false;
  int64_t confirmed = -1;
  std::string loss;
  std::string dismissal;  // what it was told when it was dismissed on its own
  // Where the coordinator may die and be followed by another one:
  std::string secret;        // fingerprint of what it shows when it comes back; "": it cannot
  bool away = false;         // it was there before the coordinator died, and has not come back yet
  bool fresh = false;        // it has come back, and said nothing since
  Clock::time_point gone{};  // when its stream ended
};

struct MembershipOptions {
  int ranks = 1;
  Seconds heartbeat_limit{3};                      // silence that counts as death
  std::vector<std::pair<std::string, int>> hosts;  // name, slots; may be empty
  size_t most_members = 4096;
  int servers = 0;  // numbered apart from the ranks
  OnLoss on_loss = OnLoss::end_job;
  // Where the crew may change:
  int least = 1;              // workers; fewer do not go on
  int most = 0;               // that may be wanted; 0: no limit
  Seconds rejoin_timeout{0};  // how long too few wait for newcomers; 0: not at all
  Seconds return_limit{0};    // how long a member may be away after another coordinator has taken the job over
};

/// A member's end.
struct Departure {
  uint64_t id = 0;
  Standing standing = Standing::left;
  std::optional<Failure> failure;  // when it is a failure of the job; lost without one: the crew changes
  std::string reason;              // for the log
};

struct Decision {
  std::vector<Departure> departures;  // of members that were present until now
  bool underway = false;              // all ranks and servers have registered themselves
  bool complete = false;              // all ranks and servers have registered, themselves or through their agents
  bool ended = false;                 // nobody is present any more, and the job was complete or has failed
  std::string reason;                 // "2 of 4 ranks have registered; ranks 1 and 3 have not"
};

/// "rank 1 on host b (process 4242)", "server 1 on host b (process 4242)", "the agent of host b (process 4242)".
std::string name_of(const Member& member);

/// Who is lost, who has left, is the job complete, has it ended. `failed`: the job has failed for a reason that no
/// member's standing shows.
Decision judge(Clock::time_point now, const std::vector<Attendee>& attendees, const MembershipOptions& options,
               bool failed = false);

struct Admission {
  std::string refusal;  // why the newcomer cannot be a member, or ""
  Member member;        // otherwise, the member: an agent of the host list has its ranks now
};

/// The lowest number that no rank has had, and none above it: who comes when the job is under way gets it.
int next_number(const std::vector<Attendee>& attendees, const MembershipOptions& options);

/// May a newcomer that connects from `address` be a member?
Admission admit(const Member& newcomer, std::string_view address, const std::vector<Attendee>& attendees,
                const MembershipOptions& options);

/// The rank of every attendee, -1 where it cannot be told yet. Ranks that are set stay. The others are assigned when
/// all are there, so that the ranks of a host are neighbours: hosts in the order of the list, then of registration.
/// Servers wait for nobody: each gets the lowest index that is free.
std::vector<int> assign(const std::vector<Attendee>& attendees, const MembershipOptions& options);

/// Grows with every registration, assignment and departure.
uint64_t epoch_of(const std::vector<Attendee>& attendees);

constexpr double kClockTolerance = 5;  // seconds

/// A warning when a member's wall clock (seconds since 1970) is off by more than kClockTolerance, or "".
std::string clock_warning(const std::string& host, double theirs, const std::string& own_host, double ours);

}  // namespace trireme::cluster
