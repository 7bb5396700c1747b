#pragma once
// Keeping time: the one mechanism on which everything that ranks of a machine do together is built.
//
// Vocabulary. A *round* is one collective, numbered from 0. A rank *arrives* at a round by publishing an *entry*: what
// it is about to do and where its data is. When all have arrived, each rank does its *part* (say, sums its slice) and
// then *finishes* the round. When all have finished, the results may be used. Rounds run in order; a rank may arrive at
// up to kAhead - 1 rounds before it finishes the first.
//
// An entry is one cache line, so that arrival, fingerprint and data offset cross to the other core in one transfer.
#include <algorithm>
#include <array>
#include <atomic>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <trireme/base/advice.h>
#include <trireme/base/bell.h>
#include <trireme/base/clock.h>
#include <trireme/base/descriptor.h>
#include <trireme/base/segment.h>
#include <trireme/base/watch.h>
#include <trireme/metrics/metrics.h>
#include <trireme/space/dtype.h>

namespace trireme::comm::shm {

enum class Kind : uint8_t {
  none,
  barrier,
  allreduce,
  reduce_scatter,
  all_gather,
  broadcast,
  all_to_all,
  allocate,
  step
};
std::string_view name_of(Kind kind);

/// What all ranks must agree on.
struct Fingerprint {
  Kind kind = Kind::none;
  DType dtype = DType::u8;
  Op op = Op::sum;
  uint8_t root = 0;
  uint32_t part = 0;  // number of the piece, where a collective takes several rounds
  uint64_t count = 0;
  uint64_t name = 0;    // hash
  uint64_t counts = 0;  // hash of the blocks' counts, where they are uneven; kOwnCounts: each rank has its own
  bool operator==(const Fingerprint&) const = default;
};

struct alignas(64) Entry {
  std::atomic<uint32_t> round;  // number + 1 once the rest of the line is valid
  Fingerprint what;
  uint64_t offset;  // of the data in the segment, or kPrivate
  uint32_t staged;  // chunks that this rank had posted on the way up when it arrived (see stages.h)
  uint32_t listed;  // counts that came with it
};
static_assert(sizeof(Entry) == 64);

constexpr uint64_t kPrivate = ~uint64_t{0};
constexpr uint64_t kOwnCounts = ~uint64_t{0};
constexpr uint32_t kAhead = 64;  // entries per rank
constexpr size_t kNameBytes = 56;

enum State : uint32_t { kAbsent, kPresent, kLeft, kFailed };

/// One rank's block of the shared control area. Written by its owner only, but for the bell and the count of sleepers.
/// What peers look at and what sleepers change lie in different pairs of cache lines.
struct alignas(128) Station {      // NOLINT(clang-analyzer-optin.performance.Padding)
  std::atomic<uint32_t> finished;  // rounds finished
  std::atomic<uint32_t> state;     // a State
  std::atomic<int32_t> pid;
  alignas(128) Bell bell;         // rings when this rank arrived, finished, left or somebody died
  std::atomic<uint32_t> bedside;  // the rank at whose bell this one sleeps, + 1
  std::atomic<uint32_t> light;    // 1: this rank sleeps lightly, and is woken whoever rings
  alignas(128) std::array<Entry, kAhead> entries;
  std::array<std::array<char, kNameBytes>, kAhead> names;
  std::atomic<uint32_t> victim;  // 1: it ends because of somebody else
  std::array<char, 256> cause;   // of its death, if it could still write one: ends with 0
};

/// What a rank does after it has arrived or finished: goes on with its own work, or waits at once for the others to do
/// the same. Looking for sleepers to wake means waiting until what was written has reached the other cores; a rank that
/// waits anyway looks afterwards.
enum class Then { work, wait };

using Excuse = std::function<std::exception_ptr(int rank)>;
/// What a rank counts of its waits.
struct RoundsMetrics {
  explicit RoundsMetrics(metrics::Registry* registry)
      : wait_seconds(registry,
                     {"wait_seconds", "seconds",
                      "For other ranks of the machine, after the first 0.1 ms of looking; ranks that outnumber "
                      "the cores do not look"}) {}
  metrics::Histogram wait_seconds;
};

/// This rank's place in the rounds. Not thread-safe. The constructor blocks until all ranks are present.
class Rounds {
 public:
  static constexpr size_t bytes(int ranks) {
    const auto n = static_cast<size_t>(ranks);
    return round_up(n * (sizeof(Station) + kAhead * most_counts(ranks) * sizeof(uint64_t)), kPage);
  }
  /// That an arrival can bring: two for each rank, or one for each of a job on many machines. More are left out.
  static constexpr size_t most_counts(int ranks) { return std::max<size_t>(2 * static_cast<size_t>(ranks), 64); }

  /// `names` are what messages call the ranks, where they have other numbers in the job; empty: 0, 1, …
  /// `timeout_setting`: what they call the timeout. `excuse` says why a rank that is waited for at the start will not
  /// come; null: it may.
  Rounds(std::shared_ptr<Segment> segment, size_t offset, int rank, int ranks, Seconds timeout,
         std::vector<int> names = {}, std::string timeout_setting = "", const Excuse& excuse = {},
         metrics::Registry* registry = nullptr);
  ~Rounds();

  int rank() const { return rank_; }
  int ranks() const { return ranks_; }
  Seconds timeout() const { return limit_.timeout; }
  /// For waits that begin from now on. From the thread that waits.
  const WaitLimit& limit() const { return limit_; }
  void set_limit(WaitLimit limit) { limit_ = std::move(limit); }
  int name_of(int rank) const { return names_.empty() ? rank : names_[static_cast<size_t>(rank)]; }

  /// Publishes this rank's entry for the next round and returns the round's number. Waits only when kAhead rounds are
  /// open.
  uint32_t arrive(const Fingerprint& what, uint64_t offset, std::string_view name, Then then = Then::work,
                  uint32_t staged = 0, std::span<const uint64_t> counts = {});
  /// True when every rank has arrived; does not wait. Throws Mismatch when somebody came for something else.
  bool all_arrived(uint32_t round);
  void await_arrivals(uint32_t round);
  /// Where rank's data is, in a round at which all have arrived and that this rank has not finished.
  uint64_t offset_of(int rank, uint32_t round) const { return entry(rank, round).offset; }
  uint32_t staged_by(int rank, uint32_t round) const { return entry(rank, round).staged; }
  /// What the rank arrived with.
  std::span<const uint64_t> counts_of(int rank, uint32_t round) const {
    return {counts_at(rank, round), entry(rank, round).listed};
  }

  /// This rank's part of the round is done. Rounds are finished in order.
  void finish(uint32_t round, Then then = Then::work);
  bool all_finished(uint32_t round) const;
  void await_finished(uint32_t round);

  /// Waits until `ready()` holds; `peer` is the rank that makes it so and that rings. For channels beside the rounds.
  /// `what()` says, in an error message, what was waited for.
  template <class Ready, class What>
  void await(int peer, const Ready& ready, const What& what);
  /// Waits for something that other threads of this process bring, and that has a deadline and errors of its own. They
  /// call nudge(rank()) afterwards.
  template <class Ready>
  void await_threads(const Ready& ready);
  /// Done in every wait that takes a while, again and again: what others need of this rank meanwhile. True where any
  /// rank's next step may give it something to do.
  void attend(std::function<bool()> meanwhile) { meanwhile_ = std::move(meanwhile); }
  /// From any thread: wakes `rank` wherever it sleeps. Call after a sequentially consistent change.
  void nudge(int rank) {
    if (const uint32_t bedside = stations_[rank].bedside.load(); bedside != 0) wake(stations_[bedside - 1].bell);
  }
  /// From any thread: every wait, now and later, ends with `cause`. The first cause stays.
  void interrupt(std::exception_ptr cause) noexcept;
  /// False for a rank that has left, or stopped after an error. Does not know of deaths.
  bool present(int rank) const { return stations_[rank].state.load() == kPresent; }
  /// False once a wait for another rank may end with an error: somebody died or stopped after an error, or interrupt().
  /// From any thread.
  bool intact() const;
  /// A descriptor that becomes readable when the rank's process ends; -1: it is this one.
  int process_of(int rank) const { return processes_.empty() ? -1 : processes_[static_cast<size_t>(rank)].get(); }
  /// This process is about to die of an exception that nobody caught: the others' errors will say so. Takes no lock and
  /// no memory.
  void note_cause(std::string_view text, bool victim) noexcept;
  /// Wakes whoever sleeps on this rank's bell. Call after a change that await() on another rank looks for.
  void ring();
  /// The same, not now but before this rank waits, arrives or finishes the next time.
  void ring_later() { unannounced_ = true; }

 private:
  // This rank's own from a copy: its line in shared memory is in the cache of whoever looked at it last.
  const Entry& entry(int rank, uint32_t round) const {
    return rank == rank_ ? own_[round % kAhead] : stations_[rank].entries[round % kAhead];
  }
  bool arrived(int rank, uint32_t round) const {
    return static_cast<int32_t>(entry(rank, round).round.load() - (round + 1)) >= 0;
  }
  bool finished(int rank, uint32_t round) const {
    return static_cast<int32_t>((rank == rank_ ? finished_ : stations_[rank].finished.load()) - (round + 1)) >= 0;
  }
  uint64_t* counts_at(int rank, uint32_t round) const {
    return counts_ + (static_cast<size_t>(rank) * kAhead + round % kAhead) * most_counts(ranks_);
  }
  bool meanwhile() const { return meanwhile_ && meanwhile_(); }
  void wake_sleepers();
  class Bed;
  template <class Awake>
  void sleep_at(int peer, const Deadline& deadline, const Awake& awake);
  void compare(int peer, uint32_t round);
  std::string describe(int rank, uint32_t round) const;
  bool trouble(int awaited) const {
    return lost_.load() >= 0 || interrupted_.load() || stations_[awaited].state.load() > kPresent;
  }
  [[noreturn]] void give_up(int awaited, const std::string& what) const;
  bool is_victim(int rank) const { return stations_[rank].victim.load() != 0; }
  int failed_by_itself() const;
  void note_lost(int peer);
  [[noreturn]] void time_out(int peer, const std::string& what) const;
  void announce(Then then);
  void ended(int peer);
  void join_all(const Excuse& excuse);
  void await_presence(int peer, const Excuse& excuse);

  std::shared_ptr<Segment> segment_;
  Station* stations_;
  uint64_t* counts_;
  int rank_, ranks_;
  std::vector<int> names_;
  WaitLimit limit_;
  RoundsMetrics count_;
  Patience patience_;
  std::function<bool()> meanwhile_;
  bool unannounced_ = false;  // sleepers have not been looked for since this rank arrived or finished
  uint32_t next_ = 0;         // round at which this rank arrives next
  uint32_t finished_ = 0;     // rounds that this rank finished
  uint32_t compared_ = 0;     // rounds below this were found to match
  uint32_t past_ = 0;         // rounds below this were found finished by all
  std::array<Entry, kAhead> own_{};
  std::atomic<int> lost_{-1};  // rank that the watcher saw die
  std::exception_ptr cause_;   // set before interrupted_, not changed after it
  std::atomic<bool> interrupting_{false}, interrupted_{false};
  std::vector<Descriptor> processes_;
  std::optional<Watch> watch_;  // of the peers' processes
};

/// Where this rank sleeps, for those who have to wake it.
class Rounds::Bed {
 public:
  Bed(Rounds& rounds, int peer, bool light);
  ~Bed();
  Bed(const Bed&) = delete;
  Bed& operator=(const Bed&) = delete;

 private:
  Rounds& rounds_;
  bool light_;
};

template <class Awake>
void Rounds::sleep_at(int peer, const Deadline& deadline, const Awake& awake) {
  const Bed bed(*this, peer, meanwhile());
  doze(stations_[peer].bell, deadline, [&] {
    meanwhile();
    return awake();
  });
}

template <class Ready, class What>
void Rounds::await(int peer, const Ready& ready, const What& what) {
  std::optional<metrics::Timer> timer;
  std::optional<Deadline> deadline;  // most waits are over before a clock is worth reading
  const auto between_looks = [&] {
    if (!timer) {
      timer.emplace(&count_.wait_seconds);
      deadline.emplace(limit_.timeout);
    }
    announce(Then::work);
    meanwhile();
    if (trouble(peer) && !ready()) give_up(peer, what());  // a peer may leave when its part is done
  };
  if (look(patience_, ready, between_looks, [&] { return deadline->passed(); })) return;
  if (!deadline) deadline.emplace(limit_.timeout);
  while (!ready()) {
    sleep_at(peer, *deadline, [&] { return ready() || trouble(peer); });
    if (trouble(peer) && !ready()) give_up(peer, what());
    if (deadline->passed()) time_out(peer, what());
  }
}

template <class Ready>
void Rounds::await_threads(const Ready& ready) {
  announce(Then::work);
  while (!ready()) sleep_at(rank_, Deadline(limit_.timeout), ready);
}

}  // namespace trireme::comm::shm
