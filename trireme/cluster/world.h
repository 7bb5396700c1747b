#pragma once
// The ranks that train together.
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <trireme/base/clock.h>
#include <trireme/cluster/coordination/job.h>
#include <trireme/cluster/environment/environment.h>
#include <trireme/cluster/group.h>
#include <trireme/cluster/mesh.h>
#include <trireme/metrics/metrics.h>

namespace trireme {
namespace cluster {
class LastWords;
class Session;
class StatusDoor;
}  // namespace cluster

struct JoinOptions {
  Seconds timeout{60};  // deadline of every wait for another rank, the start included
  std::string timeout_setting =
      "JoinOptions::timeout";           // what error messages call it: a program with a flag for it says that one
  Seconds heartbeat_limit{3};           // several machines: silence that counts as death
  std::string engine;                   // between machines: stream, gloo, mpi or nccl; "" and auto: what TRIREME_ENGINE
                                        // says
  std::optional<size_t> direct_bytes;   // between machines: network::Options::direct_bytes; none: what `trireme tune`
                                        // kept, or a default. Rank 0's counts
  std::optional<size_t> stage_bytes{};  // inside a machine: comm::shm::Options::stage_bytes, the same in all ranks;
                                        // none: its default
  cluster::OnLoss on_loss = cluster::OnLoss::end_job;  // several machines, where this process runs the coordinator:
                                                       // what a lost rank means
  bool timed = true;                                   // measure times too, and not only count: see metrics::Registry
};

/// Keeps a callback of World::on_failure registered. Destroying it unregisters, and waits for the callback if it runs:
/// not in the callback itself, and not with a lock that the callback takes. May outlive the world.
class FailureWatch {
 public:
  struct Listeners;

  FailureWatch() = default;
  FailureWatch(std::shared_ptr<Listeners> listeners, uint64_t id) : listeners_(std::move(listeners)), id_(id) {}
  ~FailureWatch() { reset(); }
  FailureWatch(FailureWatch&& other) noexcept : listeners_(std::exchange(other.listeners_, nullptr)), id_(other.id_) {}
  FailureWatch& operator=(FailureWatch&& other) noexcept;
  void reset();

 private:
  std::shared_ptr<Listeners> listeners_;  // null: watches nothing
  uint64_t id_ = 0;
};

/// This process's membership in a job. Move-only; leaving is destroying it. One thread at a time.
class World {
 public:
  World(cluster::Place place, const JoinOptions& options);
  ~World();
  World(World&&) noexcept;

  /// As the job was started: they stay when the crew changes, unlike those of group(). A newcomer's rank is beyond the
  /// size.
  int rank() const { return place_.rank; }
  int size() const { return place_.size; }
  /// Exactly one rank of the crew is the first: the one that prints and saves. Another one may be after regroup().
  bool first() const { return group().first(); }
  const std::string& launcher() const { return place_.launcher; }
  /// Parameter servers of the job, beside its ranks.
  int servers() const { return place_.servers; }
  /// What was found in the environment, and what the coordinator has said since.
  const cluster::Place& place() const { return place_; }
  /// The name under which processes of this job on one machine meet. With a coordinator it is secret, and the same on
  /// all machines.
  const std::string& job() const { return job_; }
  /// Small values that all members of the job can see, servers too. Thread-safe. Null without a coordinator.
  comm::network::KeyValue* store();
  /// Calls `notify` once when the job fails: from the session's thread, or at once if it has failed already. It must
  /// not block, nor call on_failure(). Only with a coordinator, or under a launcher of ours whose crew changes: else
  /// all are on one machine, and whoever waits for one that is lost notices it. Not while the world is being left.
  /// Thread-safe.
  [[nodiscard]] FailureWatch on_failure(std::function<void(const std::string& reason)> notify);

  /// All ranks of the crew. Another one after regroup().
  Group& group() { return *group_; }
  const Group& group() const { return *group_; }
  /// Parts of it: see Group.
  comm::Communicator& comm() { return group_->comm(); }
  comm::shm::Communicator& local() { return group_->local(); }
  comm::network::Communicator* lane() { return group_->lane(); }
  int lanes() const { return group_->lanes(); }
  int machines() const { return group_->machines(); }
  int machine_of(int rank) const { return group_->machine_of(rank); }
  Group split(int color, int key = 0) { return group_->split(color, key); }
  Mesh mesh(std::vector<Axis> axes) { return {*group_, std::move(axes)}; }

  /// The job goes on when a rank is lost, and ranks may come and go.
  bool elastic() const;
  /// This process came when the job was under way, and has not entered yet: group() is itself alone.
  bool newcomer() const { return newcomer_; }
  /// Newcomer: it is ready. Blocks until it is in a crew, as long as the job lasts; group() is the crew's. Collective
  /// among the crew, whose others are in regroup(). Throws Dismissed when the job has ended or does not need it any
  /// more, PeerLost when the job has failed.
  Group& enter();
  /// Of an elastic job, once its ranks have agreed on something: so that newcomers can compare before they enter, and
  /// one that does not fit disturbs nobody. All of the crew tell the same. Nothing where the crew does not change.
  void tell_newcomers(const std::string& what, const std::string& text);
  /// A newcomer: what the crew has told. Blocks until it has, as long as the job lasts. Throws PeerLost when the job
  /// has failed.
  std::string told_newcomers(const std::string& what);
  /// There is a crew beyond group().epoch(): the ranks should agree to call regroup(), all after the same step.
  /// Thread-safe, and one look at memory.
  bool change_wanted() const { return !newcomer_ && site_->latest() > site_->epoch(); }
  /// After a collective has failed because a rank was lost (PeerLost), or when a change is wanted: the group of the
  /// next epoch, of those who are left and of newcomers, on the same memory. Collective among them. Waits for newcomers
  /// where too few are left. All groups of the epoch before, and what was made of them, are of no more use, and may be
  /// destroyed. Throws PeerLost when the job has failed (JoinOptions::on_loss) or this rank was given up for lost,
  /// Dismissed when the next crew does without it, Timeout when somebody who lives does not come.
  ///
  /// Too few that nobody came to are a closing crew (docs/elastic.md): it makes no step, but may save what it has.
  /// Whoever can do that says so; for others it is a PeerLost. closing(): whether group() is one.
  enum class Closing { lost, saves };
  Group& regroup(Closing closing = Closing::lost);
  bool closing() const { return !changes_.empty() && changes_.back().closing; }
  /// The changes of the crew since this process is in it, with the one that took it in.
  const std::vector<cluster::CrewChange>& changes() const { return changes_; }

  /// "shared memory", "shared memory, and Gloo of libtorch 1.13.1 between 2 machines"
  std::string engine() const;
  /// What the user should know, such as clocks that differ between machines.
  const std::vector<std::string>& warnings() const { return warnings_; }
  const std::string& timeout_setting() const { return timeout_setting_; }
  /// Where this rank counts. Thread-safe.
  metrics::Registry& registry() const { return *registry_; }

  /// What a layer above keeps once for as long as this membership lasts. Destroyed first when the world is left.
  using Attachment = cluster::Attachment;
  /// The T of this world; made with `arguments` at the first call.
  template <class T, class... Arguments>
  T& attached(Arguments&&... arguments) {
    return site_->attached<T>(std::forward<Arguments>(arguments)...);
  }

 private:
  struct Network;
  struct Desk;
  friend World join(const JoinOptions& options);
  void keep_last_words();
  void meet_here(const JoinOptions& options);
  void open_status_door();
  void meet_machines(const JoinOptions& options);
  void register_rank(const JoinOptions& options);
  std::vector<int> find_machines(const JoinOptions& options);
  void begin(cluster::Facts facts, size_t control);
  void follow_coordinator();
  void attend_desk();
  void follow_desk();
  void come_alone(const JoinOptions& options);
  cluster::Session* session() const;
  void note_changes();

  cluster::Place place_;
  std::string job_;
  std::vector<std::string> warnings_;
  std::unique_ptr<metrics::Registry> registry_;
  std::shared_ptr<FailureWatch::Listeners> listeners_;
  std::unique_ptr<Network> network_;  // null when all ranks were started on this machine
  std::unique_ptr<Desk> desk_;        // null unless our launcher started them there
  std::string timeout_setting_;
  std::shared_ptr<cluster::Site> site_;
  std::optional<Group> group_;
  bool newcomer_ = false;
  bool dismissed_ = false;
  std::vector<cluster::CrewChange> changes_;
  std::unique_ptr<cluster::StatusDoor> status_door_;  // null unless join() made this world
  std::unique_ptr<cluster::LastWords> last_words_;    // as status_door_
};

/// Joins the ranks that a launcher started, or makes a world of one when there is no launcher. Blocks until all are
/// there.
World join(const JoinOptions& options = {});

}  // namespace trireme
