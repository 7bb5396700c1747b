#pragma once
// Collectives between machines, on any engine's messages.
#include <condition_variable>
#include <thread>

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

/// Collectives run on threads of the communicator's own, so a started allreduce moves on while its caller computes.
/// They begin in the order of the calls, and a few are under way at a time, so that the wire does not idle while one of
/// them waits or reduces. Any memory will do. send() and receive() run on the caller's thread and wait for no
/// collective. After an error everything fails with that error.
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
  void allreduce(void* data, size_t count, DType type, Op op, std::string_view name) override;
  std::unique_ptr<Work> start_allreduce(void* data, size_t count, DType type, Op op, std::string_view name) override;
  /// The same with a little along: at most kMostFlags and kMostSums.
  std::unique_ptr<Work> start_allreduce(void* data, size_t count, DType type, Op op, const Along& along,
                                        std::string_view name);
  static constexpr size_t kMostFlags = 800, kMostSums = 8;
  void reduce_scatter(const void* input, void* output, size_t count, DType type, Op op, std::string_view name) override;
  void all_gather(const void* input, void* output, size_t count, DType type, std::string_view name) override;
  void broadcast(void* data, size_t count, DType type, int root, std::string_view name) override;
  void all_to_all(const void* input, void* output, size_t count, DType type, std::string_view name) override;
  void send(const void* data, size_t count, DType type, int to, std::string_view name) override;
  void receive(void* data, size_t count, DType type, int from, std::string_view name) override;
  void barrier(std::string_view name) override;

  /// Of the callers' data, so far; and the time in which at least one collective was under way. Thread-safe.
  double carried_bytes();
  double busy_seconds();

  /// From any thread: every wait, now and later, ends with `cause`, unless the group has failed before.
  void interrupt(std::exception_ptr cause) noexcept { wire_.fail(std::move(cause)); }

 private:
  class Handle;
  static constexpr size_t kThreads = 4;           // operations that are being completed at a time
  static constexpr size_t kAhead = kThreads + 4;  // operations whose openings are under way

  Fingerprint about(Kind kind, size_t count, DType type, std::string_view name);
  std::shared_ptr<Ticket> enqueue(std::unique_ptr<Operation> operation);
  template <class Action>
  void point_to_point(int peer, std::string_view verb, std::string_view name, const Action& action);
  void post_ahead();
  void work();
  std::exception_ptr complete(Operation& operation) noexcept;
  bool idle() const { return queue_.empty() && active_ == 0; }

  Options options_;
  Wire wire_;
  Letters letters_;
  uint64_t sequence_ = 0;

  std::mutex mutex_;
  std::condition_variable wake_;
  std::deque<std::unique_ptr<Operation>> queue_;  // guarded by mutex_, like all below; those that no thread has taken
  size_t posted_ = 0;                             // of the queue
  size_t active_ = 0;                             // that a thread has taken
  CollectiveMetrics count_;
  Clock::time_point busy_since_{};  // while there are operations
  bool stopping_ = false;
  std::vector<std::thread> threads_;
};

}  // namespace trireme::comm::network
