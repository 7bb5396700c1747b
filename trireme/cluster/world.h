#pragma once
// The ranks that train together.
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <typeindex>
#include <utility>
#include <vector>

#include <trireme/base/clock.h>
#include <trireme/cluster/environment/environment.h>
#include <trireme/comm/network/communicator.h>
#include <trireme/comm/network/engine.h>
#include <trireme/comm/shm/communicator.h>
#include <trireme/metrics/metrics.h>

namespace trireme {
namespace cluster {
class LastWords;
class StatusDoor;
}  // namespace cluster

struct JoinOptions {
  Seconds timeout{60};  // deadline of every wait for another rank, the start included
  std::string timeout_setting =
      "JoinOptions::timeout";          // what error messages call it: a program with a flag for it says that one
  Seconds heartbeat_limit{3};          // several machines: silence that counts as death
  std::string engine;                  // between machines: gloo, mpi or nccl; "" and auto: what TRIREME_ENGINE says
  std::optional<size_t> direct_bytes;  // between machines: network::Options::direct_bytes; none: what `trireme tune`
                                       // kept, or a default. Rank 0's counts
  bool timed = true;                   // measure times too, and not only count: see metrics::Registry
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

  int rank() const { return place_.rank; }
  int size() const { return place_.size; }
  /// Exactly one rank is the first: the one that prints and saves.
  bool first() const { return rank() == 0; }
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
  /// not block, nor call on_failure(). Never without a coordinator, and not while the world is being left. Thread-safe.
  [[nodiscard]] FailureWatch on_failure(std::function<void(const std::string& reason)> notify);

  comm::Communicator& comm();
  /// The ranks on this machine.
  comm::shm::Communicator& local() { return *local_; }
  /// This rank's partners, one on each machine: see exchange::Group. Null with one machine, and for a rank beyond the
  /// number of lanes.
  comm::network::Communicator* lane();
  int lanes() const;
  int machines() const;
  /// Of any rank; machines are numbered from 0, in the order of their first ranks.
  int machine_of(int rank) const;
  /// "shared memory", "shared memory, and Gloo of libtorch 1.13.1 between 2 machines"
  std::string engine() const;
  /// What the user should know, such as clocks that differ between machines.
  const std::vector<std::string>& warnings() const { return warnings_; }
  const std::string& timeout_setting() const { return timeout_setting_; }
  /// Where this rank counts. Thread-safe.
  metrics::Registry& registry() const { return *registry_; }

  /// What a layer above keeps once for as long as this membership lasts. Destroyed first when the world is left.
  struct Attachment {
    virtual ~Attachment() = default;
  };
  /// The T of this world; made with `arguments` at the first call.
  template <class T, class... Arguments>
  T& attached(Arguments&&... arguments) {
    auto& place = attachments_[typeid(T)];
    if (!place) place = std::make_unique<T>(std::forward<Arguments>(arguments)...);
    return static_cast<T&>(*place);
  }

 private:
  struct Network;
  friend World join(const JoinOptions& options);
  void keep_last_words();
  void open_status_door();
  void meet_machines(const JoinOptions& options);
  void connect_machines(const JoinOptions& options, const std::vector<int>& machine_of);

  cluster::Place place_;
  std::string job_;
  std::vector<std::string> warnings_;
  std::unique_ptr<metrics::Registry> registry_;
  std::unique_ptr<comm::shm::Communicator> local_;
  std::shared_ptr<FailureWatch::Listeners> listeners_;
  std::unique_ptr<Network> network_;  // null when all ranks were started on this machine
  std::string timeout_setting_;
  std::map<std::type_index, std::unique_ptr<Attachment>> attachments_;
  std::unique_ptr<cluster::StatusDoor> status_door_;  // null unless join() made this world
  std::unique_ptr<cluster::LastWords> last_words_;    // as status_door_
};

/// Joins the ranks that a launcher started, or makes a world of one when there is no launcher. Blocks until all are
/// there.
World join(const JoinOptions& options = {});

}  // namespace trireme
