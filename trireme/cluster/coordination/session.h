#pragma once
// A process's membership in a job that spans machines: the client of the coordinator. One per process: worker, server
// or agent.
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <trireme/base/clock.h>
#include <trireme/cluster/coordination/job.h>
#include <trireme/comm/network/engine.h>
#include <trireme/metrics/snapshot.h>

namespace trireme::cluster {

struct SessionOptions {
  std::string coordinator;                       // host:port
  std::string job;                               // "": whichever the coordinator serves
  std::string token;                             // the coordinator's
  std::string tls;                               // folder of `trireme tls init`; "": plain
  Seconds timeout{60};                           // to register and get a rank, and of every put()
  Seconds heartbeat_limit{3};                    // silence of the coordinator that counts as its death
  int interrupt = -1;                            // descriptor: when it becomes readable, the constructor stops waiting
  std::string version;                           // to introduce oneself with; "": this library's. For tests
  std::function<metrics::Snapshot()> counted{};  // what heartbeats tell the coordinator; called from the session's
                                                 // thread, and from leave(). Null: nothing
};

/// Thread-safe. Destroyed without leave(), it is lost to the others, and the job fails.
class Session final : public comm::network::KeyValue {
 public:
  /// Registers; waits for a coordinator that is not up yet. Without a rank of its own, blocks until all others are
  /// there too. Throws Timeout, InvalidArgument (token, job, rank, certificates), Mismatch (version), PeerLost when the
  /// job has failed already or `interrupt` says so, Dismissed for a newcomer to a job that is over.
  Session(SessionOptions options, Member member);
  ~Session() override;

  /// An agent's is the first of its ranks, a server's its index.
  int rank() const;
  int size() const;
  /// Parameter servers of the job.
  int servers() const;
  /// An agent's ranks: [rank, rank + slots).
  int slots() const;
  const std::string& job() const;
  /// Job and token: the name under which processes of one machine meet. The same for all members, and nobody else can
  /// know it.
  const std::string& meeting() const;
  const JobSpec& spec() const;
  /// Of this host, as the coordinator's network sees it.
  const std::string& address() const;
  /// What the user should know: clocks that differ.
  const std::vector<std::string>& warnings() const;

  /// Throws PeerLost when the job has failed, InvalidArgument when a limit is exceeded, Timeout.
  void put(const std::string& key, const std::string& value) override;
  std::string get(const std::string& key, const Deadline& deadline) override;

  /// The same, but throws PeerLost when a loss has ended the crew of `epoch`, or does while it waits.
  std::string get_within(uint64_t epoch, const std::string& key, const Deadline& deadline);
  /// The latest crew, once its epoch is beyond `epoch`: blocks until then, and longer where newcomers are awaited: as
  /// long as the coordinator waits for them. Throws Timeout, PeerLost when the job has failed or this process was given
  /// up, Dismissed.
  CrewChange next_crew(uint64_t epoch, const Deadline& deadline);
  /// All that came so far, in order.
  std::vector<CrewChange> crews() const;
  /// Whether the job goes on when a rank is lost.
  bool elastic() const;
  /// A newcomer can row. `machine`: which memory it shares with its neighbours.
  void ready(const std::string& machine);
  /// This rank is in the crew of that epoch.
  void confirm(uint64_t epoch, const std::string& machine);
  /// Calls `notify`, from the session's thread, with each new crew, or only the latest of several. Must not destroy the
  /// session.
  void on_crew(std::function<void(const CrewChange&)> notify);
  /// Why this process is not needed any more, once that is so: a worker, or an agent whose workers are not.
  std::optional<std::string> dismissal() const;
  /// An agent: how many workers it was asked to start besides, so far.
  int more() const;
  /// Calls `notify`, from the session's thread, when either of the two has changed. Must not destroy the session.
  void on_wish(std::function<void()> notify);

  /// The first failure of the job or of the way to the coordinator. Does not block.
  std::optional<Failure> failure() const;
  /// Calls `notify` once, from the session's thread, when the job fails or has failed; not after leave(). Must not
  /// destroy the session.
  void on_failure(std::function<void(const Failure&)> notify);

  /// Says goodbye: exit code 0 in peace, another fails the job for everybody (kPeerLostExit: because of somebody else).
  /// An agent gives the rank or the server that died of `reason`. Waits for the answer, not longer than the heartbeat
  /// limit; never throws. Once.
  void leave(int exit_code, const std::string& reason = "", int rank = -1, int server = -1);

 private:
  class State;
  std::unique_ptr<State> state_;
};

}  // namespace trireme::cluster
