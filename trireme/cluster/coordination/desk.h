#pragma once
// The coordinator without its network: the state of a job, and what each request does to it. Thread-safe. Every request
// shows the job's token first; nothing is looked at or changed without it.
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include <trireme/base/clock.h>
#include <trireme/base/descriptor.h>
#include <trireme/cluster/coordination/job.h>
#include <trireme/cluster/coordination/member_metrics.h>
#include <trireme/cluster/coordination/membership.h>
#include <trireme/cluster/journal/journal.h>

namespace trireme::cluster {

/// What one member, or all together, may ask for.
struct CoordinatorLimits {
  size_t message_bytes = 1 << 20;     // of one request or answer
  size_t key_bytes = 1 << 10;         // of one key
  size_t value_bytes = 1000 << 10;    // of one value; a message holds it and its key
  size_t keys = 100'000;              // that are kept
  size_t total_bytes = 256ull << 20;  // of all keys and values
  size_t members = 4096;              // present at a time
  size_t waiting = 100'000;           // gets that wait at a time
};

enum class Refused { token, argument, mismatch, limit, failed, cancelled, over };

/// Why a request was not served.
struct Refusal {
  Refused kind = Refused::argument;
  std::string text;  // goes on after "the coordinator at … "; of kind failed, a sentence of its own
};

struct Hello {
  std::string job, version;
  Member member;
  std::string address;    // where the connection comes from
  double wall_clock = 0;  // seconds since 1970
  // Where another coordinator may follow one that died:
  std::string secret;      // known to this process alone, for when it comes back; "": it does not
  uint64_t returning = 0;  // the member that it was; 0: it comes for the first time
  uint64_t heard = 0;      // the latest crew that it was told
  uint64_t attempt = 0;    // grows with every connection of this process
};

struct Welcome {
  uint64_t member = 0;
  std::string job;
  int size = 0;
  int servers = 0;
  Seconds heartbeat_limit{0};
  std::string host;  // the coordinator's
  std::vector<std::string> warnings;
  JobSpec spec;
  bool elastic = false;  // the job goes on when a rank is lost
  Seconds patience{0};   // how long members wait for a coordinator to come back; 0: not at all
};

/// The way back to a member. Must not block, nor call the desk.
class Line {
 public:
  virtual ~Line() = default;
  virtual void welcome(const Welcome& welcome) = 0;
  virtual void placed(const Member& member) = 0;
  virtual void heartbeat(const std::string& waiting) = 0;
  virtual void notice(const Failure& failure) = 0;
  virtual void crew(const CrewChange& change) = 0;
  /// It is not needed any more: a worker, or an agent whose workers are not.
  virtual void dismissed(const std::string& reason) = 0;
  /// An agent is to start so many workers besides.
  virtual void more(int workers) = 0;
  virtual void farewell() = 0;
  /// Ends the stream after what was said before; nothing follows.
  virtual void close(const std::optional<Refusal>& refusal) = 0;
  /// The one that was given to the desk.
  virtual const Line* origin() const { return this; }
};

struct DeskOptions {
  std::string job;
  std::string token;
  std::string host;     // this one, for messages
  std::string version;  // of this library
  MembershipOptions membership;
  CoordinatorLimits limits;
  JobSpec spec;
  std::shared_ptr<journal::Journal> journal;  // null: nobody can take the job over
  Seconds patience{0};                        // with a journal: how long members go on without a coordinator
};

/// The crew of a job at one moment, where it may change.
struct CrewSnapshot {
  bool elastic = false;
  uint64_t epoch = 0;
  std::vector<int> ranks;           // of the crew
  std::vector<int> spares;          // ready, and in no crew
  std::vector<int> preparing;       // registered, and not ready yet
  std::vector<int> leaving;         // still there: dismissed, or to be drained
  std::vector<int> away;            // not back yet since the coordinator was started again
  std::vector<int> lost;            // ever
  std::vector<std::string> losses;  // why, for each of them
  bool underway = false;            // the first crew has come
  bool over = false;                // it, or one after it, has done its work
  bool settled = false;             // all of the crew are in it: neither a change nor newcomers are awaited
  bool waiting = false;             // too few are left, and newcomers are awaited
  bool closing = false;             // nobody came: it saves, and ends
  int least = 1, target = 1, most = 0;
  std::string reason;  // of the last change
};

/// "epoch 3: ranks 0, 2, 4 row; spares: 5; lost: 1; 3 wanted, at least 2"
std::string describe(const CrewSnapshot& crew);

/// A job at one moment.
struct Snapshot {
  struct Entry {
    Member member;
    Standing standing = Standing::present;
    double silence = 0;  // seconds since it was last heard of
  };
  std::vector<Entry> members;
  uint64_t epoch = 0;  // grows with every change
  bool complete = false;
  bool ended = false;
  std::string reason;             // "2 of 4 ranks have registered; ranks 1 and 3 have not"
  std::vector<Failure> failures;  // the first is the cause
  size_t keys = 0;
  CrewSnapshot crew;
};

class Desk {
 public:
  using Answer = std::function<void(const std::variant<std::string, Refusal>&)>;

  /// With a journal of a job that has not come to its end, goes on with that job: its members come back. What depends
  /// on a change is said and answered when the change is durable. Throws InvalidArgument when the journal is of another
  /// job, Corruption.
  explicit Desk(DeskOptions options);
  ~Desk();

  /// In constant time.
  bool knows(const std::string& token) const;
  Refusal token_refusal() const;

  /// The new member's id; 0 when it was refused, and the line closed.
  uint64_t attend(const std::string& token, const Hello& hello, const std::shared_ptr<Line>& line);
  /// `metrics` is an encoded snapshot, or "": nothing new. One that cannot be read is passed over.
  void heartbeat(const std::string& token, uint64_t member, const std::string& metrics = "");
  void leave(const std::string& token, uint64_t member, int exit_code, const std::string& reason, int rank,
             int server = -1);
  /// A newcomer can row, and shares that memory with its neighbours.
  void ready(const std::string& token, uint64_t member, const std::string& machine);
  /// A worker is in the crew of that epoch.
  void confirm(const std::string& token, uint64_t member, uint64_t epoch, const std::string& machine);
  /// Its stream ended, with or without a goodbye. Needs no token: it comes from the transport. Of a line that is not
  /// the member's any more it says nothing.
  void disconnected(uint64_t member, const Line* line = nullptr);

  std::optional<Refusal> put(const std::string& token, uint64_t member, const std::string& key,
                             const std::string& value);
  /// Calls `answer` exactly once: now, in a later call of another thread, or in cancel(). Returns a ticket for
  /// cancel().
  uint64_t get(const std::string& token, uint64_t member, const std::string& key, Answer answer);
  void cancel(uint64_t ticket);

  /// Carries out what time alone decides: silent members. `blind` is how much longer than planned the caller slept:
  /// silence that says nothing about members.
  void tick(Seconds blind);
  /// How many workers are wanted from now on, between the least and the most. "", or a sentence why not.
  std::string set_target(int workers);
  /// Agents are asked to start the workers that are missing for the target, on the hosts that have the fewest for their
  /// slots. Without agents somebody else starts them.
  void call_for_workers();
  /// Lets a worker go in peace, after a step: "" when it will go as soon as the others can do without it, or a sentence
  /// why not.
  std::string drain(int rank);
  /// The number of the next newcomer. No other one gets it.
  int next_rank();
  /// Fails the job, for a reason outside of it.
  void fail_job(const std::string& reason);
  /// From now on too few wait for no newcomers, but save and end. `why`: a sentence without a full stop.
  void hurry(const std::string& why);
  /// The job has come to its end here, good or bad: whoever reads the journal later begins anew.
  void conclude();
  /// Answers everybody who waits, and closes all lines.
  void close();

  Snapshot snapshot() const;
  /// What ranks and servers have said last of what they count, also those that have left.
  std::vector<MemberMetrics> counted() const;
  bool wait_ended(const Deadline& deadline) const;
  /// What happened since the last call, one sentence each. The descriptor is readable while there is something.
  std::vector<std::string> take_events();
  int descriptor() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace trireme::cluster
