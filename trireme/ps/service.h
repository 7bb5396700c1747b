#pragma once
// What a server does with requests: the state of its chunks, tables, clocks and locks, without threads, sockets or
// waits.
#include <array>
#include <bitset>
#include <functional>
#include <initializer_list>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <trireme/base/clock.h>
#include <trireme/base/helpers.h>
#include <trireme/ps/job.h>
#include <trireme/ps/lane.h>
#include <trireme/ps/plan.h>
#include <trireme/ps/service_metrics.h>

namespace trireme::ps {

class CopyReader;
class Decoder;
class CopyWriter;

/// Which request numbers of a worker have been seen. Numbers may come out of order, within a window.
class SeenIds {
 public:
  static constexpr uint64_t kWindow = 4096;
  /// False when the number was added before, or is too old to tell.
  bool add(uint64_t id);

 private:
  std::bitset<kWindow> recent_;
  uint64_t highest_ = 0;
};

constexpr double kLongestDelay = 60e3;  // milliseconds, of a worker's pushes

/// How a worker has gone.
struct Departure {
  std::string how;      // "worker 1 (process 4242) died"; "": in peace
  bool victim = false;  // because somebody else is gone: those who wait hear of that one
};

/// One thread at a time. Everything that arrives is checked before it is used: a wrong request gets an answer that says
/// so and changes nothing.
class Service {
 public:
  /// Who hears what happens in a model and concerns the others. Called as the last thing that a request does.
  class Neighbours {
   public:
    virtual ~Neighbours() = default;
    /// The worker waits at the barrier, or has found no more work.
    virtual void rests(const Service& service, int worker) = 0;
    /// The worker has left, or is lost.
    virtual void left(Service& service, int worker, const Departure& departure) = 0;
  };

  /// `memory` gives the room for a flat vector of so many bytes, once, zeroed. `helpers` take part in long updates;
  /// they stay the caller's, as the server's registry and the neighbours do.
  Service(int server, std::function<std::byte*(size_t bytes)> memory, Helpers& helpers, metrics::Registry& registry,
          int model = 0, Neighbours* neighbours = nullptr);
  ~Service();

  /// A worker has come with a description of the job. Returns why it cannot be admitted, or "".
  std::string open(int worker, const std::string& job);
  /// Answers now, or later when the consistency rules allow it.
  void handle(Incoming incoming, Clock::time_point now);
  /// A worker has left, is lost, or will not come at all. Who waits for it is told.
  void gone(int worker, const Departure& departure);
  /// A worker has something to do elsewhere: its clock holds nobody back until it begins a step here.
  void rest(int worker);
  /// Carries out what time alone decides.
  void tick(Clock::time_point now);
  /// When tick() has something to do next.
  std::optional<Clock::time_point> due() const;

  /// Whether a worker has come, and has not left.
  bool here(int worker) const;
  /// All workers have come, and none is left.
  bool finished() const { return job_ && away_ == workers_.size(); }
  /// When it has finished: gives its memory back. Whatever comes then is refused.
  void release();
  int model() const { return model_; }
  /// From now on, messages say which model this is.
  void name_model() { named_ = true; }
  /// Why the job failed, or "".
  const std::string& failure() const { return failure_; }
  /// "delay WORKER MS": what `trireme ctl` says. Throws InvalidArgument.
  std::string control(const std::string& words);

  const Job* job() const { return job_ ? &*job_ : nullptr; }
  /// Its description, and the worker that it came from.
  const std::string& job_text() const { return job_text_; }
  int job_from() const { return job_from_; }

  /// A worker's request once more, with its data.
  using Again = std::function<Incoming(int worker, const Request& request)>;
  /// All that it knows, so that another one that was opened with the same job goes on with the same bits. What it has
  /// counted stays.
  void copy_to(CopyWriter& out) const;
  void copy_from(CopyReader& in, const Again& again);

  const std::vector<Chunk>& chunks() const { return chunks_; }

 private:
  struct ChunkState;
  struct Worker {
    enum Standing : uint8_t {
      absent,
      present,
      left,
      lost,
      victim
    } standing = absent;  // victim: left because of another
    SeenIds seen;
    int64_t clock = 0;    // the step that it is at, or waits for
    int64_t begun = 0;    // the last step that it began
    Seconds delay{0};     // of its pushes
    Reply answer;         // the last one to take or lock, for a repeated request
    uint64_t passed = 0;  // its request to the last barrier that all came to
  };
  struct Waiting {
    Incoming incoming;
    int64_t step = 0, piece = 0;
  };

  bool check(const Incoming& in, std::string& why) const;
  bool check_content(const Incoming& in, std::string& why) const;
  bool check_range(const Incoming& in, std::string& why) const;
  void push(Incoming in, Clock::time_point now);
  bool decode(Incoming& in);
  void arrive(Incoming in);
  void repeat_push(Incoming& in);
  void apply_together(ChunkState& state);
  void gather(ChunkState& state);
  bool has_gathered(const Incoming& in);
  void norm(const Incoming& in);
  void apply(const Incoming& in);
  void apply_in_turn(ChunkState& state);
  void apply_one(ChunkState& state, Incoming in);
  void update(ChunkState& state, space::Updater& updater, space::Range range, std::span<const space::Source> sources,
              uint8_t flags);
  static std::vector<space::Source> sources_of(const ChunkState& state);
  void compensate(ChunkState& state, Incoming& in);
  void updated(ChunkState& state);
  void answer_push(ChunkState& state, const Incoming& in);
  void pull(Incoming in);
  void has(ChunkState& state, int worker);
  void answer_pull(ChunkState& state, const Incoming& in);
  void set(const Incoming& in);
  void begin(Incoming in, int64_t step, int64_t piece);
  void begin_own(Incoming in);
  void take(Incoming in);
  void release_waiting();
  void lock(const Incoming& in);
  void barrier(Incoming in);
  void leave(const Incoming& in);
  void sparse(const Incoming& in);
  void show_rows();
  void answer(const Incoming& in, Reply reply, std::span<const std::byte> data = {});
  void refuse(const Incoming& in, Status status, const std::string& why);
  void fail_waiting(const std::string& why);
  int first_gone() const;
  Worker& worker_of(const Incoming& in) { return workers_[static_cast<size_t>(in.from->worker)]; }

  void away(Worker& worker, Worker::Standing standing);
  void forget(int worker, const std::string& how);
  std::string explain(int worker, uint64_t id) const;
  std::string explain_push(const ChunkState& state, int worker) const;
  std::string of_model() const;
  std::string label() const;

  const int server_, model_;
  Neighbours* const neighbours_;
  bool named_ = false;
  std::function<std::byte*(size_t)> memory_;
  Helpers& helpers_;
  std::optional<Job> job_;
  std::string job_text_, failure_;
  int job_from_ = -1;
  std::vector<Chunk> chunks_;
  std::vector<std::unique_ptr<ChunkState>> states_;  // by chunk; null: another server's
  std::byte* parameters_ = nullptr;
  std::unique_ptr<Decoder> decoder_;  // of a job with a codec
  std::vector<std::unique_ptr<SparseTable>> tables_;
  std::vector<float> rows_;  // of a sparse pull, where the worker's memory has no room for them

  std::vector<Worker> workers_;
  size_t away_ = 0;              // workers that have left, or are lost
  std::vector<int64_t> clocks_;  // of judge_begin
  std::vector<Waiting> beginning_;
  std::vector<Incoming> at_barrier_;
  std::vector<std::pair<Clock::time_point, Incoming>> delayed_;
  int lock_holder_ = -1;
  int64_t epoch_ = -1, next_piece_ = 0;
  bool stopped_ = false;         // nobody gets work any more
  int64_t stop_before_ = kGone;  // the step that nobody begins

  metrics::Registry& registry_;  // of the whole server
  ServiceMetrics count_;

  // State, in service_state.cpp.
  struct Held {
    size_t begin = 0;  // in its vector
    std::span<std::byte> bytes{};
  };
  Held held(const Request& request) const;
  Position position() const;
  void take_position(const Position& position, Worker& worker, int64_t clock);
  bool check_state(const Incoming& in, std::string& why) const;
  bool check_rows(const Incoming& in, std::string& why) const;
  void show_state(const Incoming& in);
  void take_state(const Incoming& in);
  void show_rows(const Incoming& in);
  void take_rows(const Incoming& in);

  // All of it, in service_copy.cpp.
  Incoming next(CopyReader& in, const Again& again, std::initializer_list<Verb> verbs,
                const ChunkState* of = nullptr) const;
  void copy_workers_to(CopyWriter& out) const;
  void copy_workers_from(CopyReader& in, const Again& again);
  void copy_chunk_to(CopyWriter& out, ChunkState& state) const;
  void copy_chunk_from(CopyReader& in, const Again& again, ChunkState& state);
};

}  // namespace trireme::ps
