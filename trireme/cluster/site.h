#pragma once
// What a process knows of its job that does not change with the crew: all its groups are made from it, and hear through
// it that they have to end.
#include <atomic>
#include <cstdint>
#include <exception>
#include <limits>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <typeindex>
#include <utility>
#include <vector>

#include <trireme/base/clock.h>
#include <trireme/base/lock.h>
#include <trireme/base/segment.h>
#include <trireme/comm/network/engine.h>
#include <trireme/metrics/metrics.h>

namespace trireme::cluster {

/// Who belongs together, from one change of the crew to the next.
struct Crew {
  uint64_t epoch = 0;           // 0 at the job's start
  std::vector<int> ranks;       // their numbers in the world, in the order of their numbers in the group
  std::string name = "all";     // within its epoch: the same in all ranks of the group, and no other group's
  std::vector<int> machines{};  // of each of the ranks; empty: as Facts::machine_of says
  bool newcomer = false;        // a process that is in no crew yet, alone: no crew's end concerns it
  /// "epoch 3/all": where its ranks meet. Those of two epochs never meet.
  std::string meeting() const { return "epoch " + std::to_string(epoch) + "/" + name; }
};

/// Plain facts, the same in all ranks but for `rank`, `segment` and `address`.
struct Facts {
  std::string job;                   // the name under which its processes on one machine meet
  int rank = 0;                      // of this process, in the world
  std::vector<int> machine_of;       // of every rank of the world, as it was at the start; a newcomer's is empty
  std::shared_ptr<Segment> segment;  // this machine's memory
  comm::network::KeyValue* store =
      nullptr;  // outlives the groups' making; null: none, which one machine can do without
  const comm::network::Engine* engine = nullptr;  // between machines; null with one
  std::string address;                            // of this host, as the others reach it
  std::string token{}, tls{};                     // of the job; the folder of certificates, or ""
  Seconds timeout{60};                            // deadline of every wait for another rank
  std::string timeout_setting = "timeout";        // what error messages call it
  metrics::Registry* registry = nullptr;          // where this process counts; outlives the groups
  std::optional<size_t> direct_bytes{};  // between machines: network::Options::direct_bytes, if somebody said it
  std::optional<size_t> stage_bytes{};   // inside one: shm::Options::stage_bytes, likewise
};

/// What groups have in the segment for themselves: areas with this in their names. A newcomer's own group has the other
/// one: it goes when the newcomer enters, whatever the epoch of the crew.
constexpr const char* kGroupMemory = "~";
constexpr const char* kNewcomerMemory = "!";

/// Memory for the control block of so many of the crew: those on one machine. Throws IoError.
size_t claim_control(Segment& segment, const Crew& crew, int ranks);

/// Of each of the crew's ranks.
std::vector<int> machines_in(const Facts& facts, const Crew& crew);

/// Names the memory that ranks of a machine share, in the words of a coordinator: the running kernel and the file.
std::string machine_of(const Segment& segment);

/// What a layer above keeps once for as long as a membership lasts.
struct Attachment {
  virtual ~Attachment() = default;
};

/// Thread-safe but for attached(), which the thread that trains calls.
class Site {
 public:
  explicit Site(Facts facts) : facts_(std::move(facts)) {}
  const Facts& facts() const { return facts_; }

  /// A group, as far as failures concern it.
  class Listener {
   public:
    virtual ~Listener() = default;
    virtual uint64_t epoch() const = 0;
    /// Every wait, now and later, ends with `cause`.
    virtual void interrupt(const std::exception_ptr& cause) noexcept = 0;
    /// This process is about to die of an exception that nobody caught.
    virtual void note_cause(std::string_view text, bool victim) noexcept = 0;
  };
  /// Interrupts it at once when its epoch has failed already.
  void add(const std::shared_ptr<Listener>& group);

  /// The crew's epoch: groups of others are of no more use.
  uint64_t epoch() const { return epoch_.load(std::memory_order_acquire); }
  void begin_epoch(uint64_t epoch) { epoch_.store(epoch, std::memory_order_release); }
  /// The latest crew's, whether this process is in it already or not.
  uint64_t latest() const { return latest_.load(std::memory_order_acquire); }
  void note_crew(uint64_t epoch) { latest_.store(epoch, std::memory_order_release); }

  static constexpr uint64_t kAllEpochs = std::numeric_limits<uint64_t>::max();
  /// Ends all waits of groups of epochs before `epoch`, those that exist and those that are being made.
  void interrupt_before(uint64_t epoch, const std::exception_ptr& cause) noexcept;
  /// Why groups of that epoch are to end; null: they are not.
  std::exception_ptr cause_of(uint64_t epoch);
  void note_cause(std::string_view text, bool victim) noexcept;

  /// A connection that is not wanted any more, and not ended yet.
  void leave_behind(std::shared_ptr<Listener> connection);
  /// Waits for those that were left behind. Before what facts() points to goes.
  void end_connections();
  /// What the user should know, such as strangers at the door. Taken once.
  void note(const std::string& text);
  std::vector<std::string> take_notes();

  /// The T of this membership; made with `arguments` at the first call.
  template <class T, class... Arguments>
  T& attached(Arguments&&... arguments) {
    auto& place = attachments_[typeid(T)];
    if (!place) place = std::make_unique<T>(std::forward<Arguments>(arguments)...);
    return static_cast<T&>(*place);
  }
  void detach_all() { attachments_.clear(); }

 private:
  std::vector<std::shared_ptr<Listener>> groups();

  const Facts facts_;
  std::atomic<uint64_t> epoch_{0}, latest_{0};
  std::map<std::type_index, std::unique_ptr<Attachment>> attachments_;
  Mutex mutex_;
  std::vector<std::weak_ptr<Listener>> groups_ TRIREME_GUARDED_BY(mutex_);
  std::vector<std::shared_ptr<Listener>> left_behind_ TRIREME_GUARDED_BY(mutex_);
  std::vector<std::string> notes_ TRIREME_GUARDED_BY(mutex_);
  uint64_t failed_before_ TRIREME_GUARDED_BY(mutex_) = 0;
  std::exception_ptr cause_ TRIREME_GUARDED_BY(mutex_);  // of that
};

}  // namespace trireme::cluster
