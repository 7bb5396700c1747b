#pragma once
// The coordinator of a job that spans machines: who belongs to it, small values that all can see, and news of failures,
// pushed to everybody at once. A gRPC server inside.
#include <memory>
#include <string>
#include <vector>

#include <trireme/base/clock.h>
#include <trireme/cluster/coordination/desk.h>
#include <trireme/cluster/coordination/job.h>

namespace trireme::cluster {

struct CoordinatorOptions {
  std::string address = "0.0.0.0";  // to listen on
  int port = 0;                     // 0: any that is free
  std::string socket;               // instead of both: a unix socket of this name, which has no file ("abstract")
  std::string job = "job";          // members of another job are refused
  std::string token;                // that every request must show; must not be empty
  std::string tls;             // folder of `trireme tls init`; "": neither encrypted nor authenticated beyond the token
  std::string host;            // this one, for messages; "": its host name
  int ranks = 1;               // of the job
  int servers = 0;             // parameter servers of the job; ranks get their places without them
  Seconds heartbeat_limit{3};  // silence of a member that counts as its death
  OnLoss on_loss = OnLoss::end_job;  // what a lost rank means, once all have come
  CoordinatorLimits limits;
  JobSpec spec;  // what agents are told
  // Where the crew may change (OnLoss::change_crew):
  int least = 1;              // workers; fewer do not go on
  int most = 0;               // that may be wanted; 0: no limit
  Seconds rejoin_timeout{0};  // how long too few wait for newcomers; 0: not at all
  // Where the coordinator may die (docs/coordinator.md):
  std::string journal;   // file, from which it takes over a job that has not ended; "": its death is the job's end
  Seconds patience{60};  // with a journal: how long members go on without a coordinator
};

/// Serves from its construction to its destruction. Thread-safe.
class Coordinator {
 public:
  /// Throws IoError when it cannot listen, InvalidArgument when options or certificates are wrong.
  explicit Coordinator(const CoordinatorOptions& options);
  /// Takes a second at most. Members that are still there see the coordinator go.
  ~Coordinator();

  int port() const;
  Snapshot snapshot() const;
  /// What ranks and servers have said last of what they count. `trireme ctl status` on this machine shows it.
  std::vector<MemberMetrics> counted() const;
  /// Blocks until the job was complete or has failed, and nobody is left. False when the deadline passes first.
  bool wait_ended(const Deadline& deadline) const;
  /// For the journal: the job has come to its end, and whoever is started with it later begins anew.
  void conclude();
  /// Fails the job for a reason outside of it, such as Ctrl-C: all members hear it at once.
  void fail_job(const std::string& reason);
  /// Workers that are too few wait for nobody any more, but save and end. `why`: a sentence without a full stop.
  void hurry(const std::string& why);

  /// How many workers are wanted from now on, `ranks` at first. "", or a sentence why that cannot be. Who is too many
  /// goes after a step; newcomers are for the caller to start.
  std::string set_target(int workers);
  /// Lets a worker go in peace, after a step. "", or a sentence why that cannot be.
  std::string drain(int rank);
  /// The rank of the next newcomer; each call gives another one. (One that registers with rank -1 gets one, too.)
  int next_rank();

  /// What happened since the last call, one sentence each.
  std::vector<std::string> take_events();
  /// Readable while there are events: for poll().
  int descriptor() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

/// Of this library: members of another one are refused.
const char* library_version();

/// This machine's, as messages name it.
std::string own_host_name();

}  // namespace trireme::cluster
