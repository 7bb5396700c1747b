#pragma once
// Collectives between machines, on any engine's messages.
#include <functional>
#include <thread>

#include <trireme/base/lock.h>
#include <trireme/comm/communicator.h>
#include <trireme/comm/network/lane_metrics.h>
#include <trireme/comm/network/letters.h>
#include <trireme/comm/network/operation.h>
#include <trireme/comm/network/transport.h>

namespace trireme::comm::network {

struct Options {
  Seconds timeout{60};                      // deadline of every wait
  std::string timeout_setting = "timeout";  // what error messages call it
  size_t direct_bytes = 16 << 10;  // up to this size each rank sends its data to all others at once; above, in a ring.
                                   // `trireme tune` measures it
  Seconds patience{
      0.2};  // when the engine reports a lost peer: how long to wait for interrupt() or another operation to say why
  std::vector<int>
      names{};  // what messages call the ranks, where they have other numbers in the job; default: 0, 1, ...
  metrics::Registry* registry = nullptr;  // where it is counted what they carry; null: for carried_bytes() alone
  std::string label{};                    // this group's there
};

/// Collectives run on threads of the communicator's own, so what was started moves on while its caller computes.
/// They begin in the order of the calls, and a few are under way at a time, so that the wire does not idle while one of
/// them waits or reduces. Messages wait for no collective. After an error everything fails with that error.
class Communicator final : public comm::Communicator {
 public:
  /// Not collective. `direct_bytes` must be the same on every rank.
  explicit Communicator(std::unique_ptr<Transport> transport, Options options = {});
  /// Ends what is still under way, with an error. Waits only for messages that were sent and not yet taken.
  ~Communicator() override;
  Communicator(const Communicator&) = delete;
  Communicator& operator=(const Communicator&) = delete;

  int rank() const override { return wire_.rank(); }
  int size() const override { return wire_.size(); }
  Started start_allreduce(void* data, size_t count, DType type, Op op, std::string_view name) override;
  /// The same with a little along: at most kMostFlags and kMostSums.
  Started start_allreduce(void* data, size_t count, DType type, Op op, const Along& along, std::string_view name);
  static constexpr size_t kMostFlags = 752, kMostSums = 14;
  Started start_reduce_scatter(const void* input, void* output, const Counts& counts, DType type, Op op,
                               std::string_view name) override;
  Started start_all_gather(const void* input, void* output, const Counts& counts, DType type,
                           std::string_view name) override;
  /// The same for slices of the blocks of a larger group: messages speak of `agreed`, which ranks compare instead.
  Started start_reduce_scatter(const void* input, void* output, const Counts& counts, const Blocks& agreed, DType type,
                               Op op, std::string_view name);
  /// The same with a little along, as for an allreduce. `output` may be where this rank's block is in `input`.
  Started start_reduce_scatter(const void* input, void* output, const Counts& counts, DType type, Op op,
                               const Along& along, std::string_view name);
  Started start_all_gather(const void* input, void* output, const Counts& counts, const Blocks& agreed, DType type,
                           std::string_view name);
  Started start_broadcast(void* data, size_t count, DType type, int root, std::string_view name) override;
  Started start_all_to_all(const void* input, void* output, const Counts& sends, const Counts& receives, DType type,
                           std::string_view name) override;
  Started start_barrier(std::string_view name) override;
  Started start_send(const void* data, size_t count, DType type, int to, std::string_view name) override;
  Started start_receive(void* data, size_t count, DType type, int from, std::string_view name) override;
  /// Receives bytes whose number only the sender knows. `room` is asked for memory for them, in another thread, when
  /// they come; what it throws fails the group. The sender's name begins with `name`. The deadline is the caller's: the
  /// message may take as long as it likes to come.
  Started start_receive_any(Letters::Room room, int from, std::string_view name);
  void send(const void* data, size_t count, DType type, int to, std::string_view name) override;
  void receive(void* data, size_t count, DType type, int from, std::string_view name) override;

  /// Of the callers' data, so far; and the time in which at least one collective was under way. Thread-safe.
  double carried_bytes();
  double busy_seconds();

  /// `news` is called, from any thread, after something that was started has ended. It must be quick, and call nothing
  /// of this group. Empty: no more.
  void notify(std::function<void()> news);

  /// From any thread: how long waits may take that begin from now on.
  void set_limit(const WaitLimit& limit) { wire_.set_limit(limit); }
  /// From any thread: every wait, now and later, ends with `cause`, unless the group has failed before.
  void interrupt(std::exception_ptr cause) noexcept { wire_.fail(std::move(cause)); }

 private:
  static constexpr size_t kThreads = 4;           // operations that are being completed at a time
  static constexpr size_t kAhead = kThreads + 4;  // operations whose openings are under way

  static void check(const Along& along, std::string_view call, std::string_view name);
  Fingerprint about(Kind kind, size_t count, DType type, std::string_view name);
  Fingerprint about(Kind kind, const Blocks& blocks, const Blocks& agreed, DType type, std::string_view name);
  template <class What, class... Arguments>
  Started enqueue(const Fingerprint& what, Arguments&&... arguments);
  template <class Action>
  auto point_to_point(int peer, std::string_view verb, std::string_view name, const Action& action);
  void tell();
  void post_ahead() TRIREME_REQUIRES(mutex_);
  void work();
  std::exception_ptr complete(Operation& operation) noexcept;
  bool idle() const TRIREME_REQUIRES(mutex_) { return queue_.empty() && active_ == 0; }

  Options options_;
  Wire wire_;
  Letters letters_;
  uint64_t sequence_ = 0;

  Mutex mutex_;
  Condition wake_;
  std::deque<std::unique_ptr<Operation>> queue_ TRIREME_GUARDED_BY(mutex_);  // those that no thread has taken
  size_t posted_ TRIREME_GUARDED_BY(mutex_) = 0;                             // of the queue
  size_t active_ TRIREME_GUARDED_BY(mutex_) = 0;                             // that a thread has taken
  CollectiveMetrics count_ TRIREME_GUARDED_BY(mutex_);
  Clock::time_point busy_since_ TRIREME_GUARDED_BY(mutex_){};  // while there are operations
  bool stopping_ TRIREME_GUARDED_BY(mutex_) = false;
  std::vector<std::thread> threads_;

  Mutex telling_;
  std::function<void()> news_ TRIREME_GUARDED_BY(telling_);
};

}  // namespace trireme::comm::network
