#pragma once
// A worker's access to the parameter servers: push, pull, wait.
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include <trireme/base/advice.h>
#include <trireme/base/clock.h>
#include <trireme/base/watch.h>
#include <trireme/comm/network/engine.h>
#include <trireme/metrics/snapshot.h>
#include <trireme/ps/job.h>
#include <trireme/ps/lane.h>
#include <trireme/ps/plan.h>
#include <trireme/ps/shm/memory.h>
#include <trireme/state/visitor.h>

namespace trireme::ps {

/// Where workers and servers of a job find each other.
struct Meeting {
  std::string job;  // key of the doors on one machine
  comm::network::KeyValue* store =
      nullptr;               // several machines: servers put their addresses here. Null: all are on this machine
  std::string token, tls;    // of the network; see cluster::Place
  bool remote_only = false;  // do not look for doors: for measurements and tests
  int channels = 2;          // connections to each server on another machine
};

struct ClientOptions {
  int model = 0;        // number of the model among the job's, the same on all workers; kRoll: none, see ps/models.h
  Seconds timeout{60};  // of every wait for a server
  std::string timeout_setting = "ClientOptions::timeout";  // what error messages call it
  bool in_place = false;  // not with replicas: see the servers' parameters instead of a copy, where all servers are on
                          // this machine. For rules under which no parameter changes while a worker computes
  size_t staging_bytes =
      16 << 20;  // room for keys and rows on their way. Without tables: as much as a piece of state needs
};

using Encode = std::function<std::span<const std::byte>(const Chunk& chunk)>;

struct PushOptions {
  int64_t step = 0;  // the worker's clock
  double lr = 0.01;
  bool pull = false;   // bring the new parameters back, in the same trip
  bool watch = false;  // servers leave out what is NaN or infinite: see Pending::sound()
  /// In the place of the gradient of a chunk whose server is on another machine: a message of the job's codec, which
  /// stays as it is until this is done. Empty: gradients travel as they are. The range has such chunks whole.
  Encode encode{};
  bool hold = false;  // where workers wait for each other: done when the gradients of all are there; apply() has to
                      // follow, and a pull of the next version. Until then they must not be written to
};

struct PullOptions {
  uint64_t at_least = 1;  // wait until the range has this version; 1: the first parameters are there
  int64_t since = -1;     // answer without data if this is still the version; -1: always bring them
};

struct Operation;
class Client;

/// What push() and pull() return: wait() for it, or forget it (barrier() and leave do not wait for what was forgotten).
/// Use from the client's thread, while the client lives.
class Pending {
 public:
  Pending() = default;
  Pending(Client* client, std::shared_ptr<Operation> operation) : client_(client), operation_(std::move(operation)) {}
  /// Does not block. Throws if it failed.
  bool ready() const;
  /// Blocks. Throws InvalidArgument (refused), PeerLost (a server, or a worker that others wait for, is gone), Timeout.
  void wait() const;
  /// After wait(): the lowest version of the chunks that it was about.
  uint64_t version() const;
  /// After wait(): false when the update that it was about left out gradients that were not finite.
  bool sound() const;
  /// After wait(): whether a pull with `since` brought anything.
  bool changed() const;

 private:
  Client* client_ = nullptr;
  std::shared_ptr<Operation> operation_;
};

/// What a worker that asks for work is given: a piece of an epoch, to do now, or the reason why there is none.
struct Lease {
  enum What : uint8_t { piece, end, stopped } what = end;
  int64_t step = 0;   // the clock: epoch's first step + piece / pieces per step
  int64_t index = 0;  // of the piece in the epoch
};

/// One worker's lines to all servers, for one model. One thread at a time, but interrupt(). Has one thread of its own,
/// which watches for servers that die.
class Client {
 public:
  /// Connects to all servers of the job, by shared memory where they are on this machine. Throws Timeout when one does
  /// not come, InvalidArgument when one does not admit this worker: its job is another than the others'.
  Client(const Meeting& meeting, int worker, Job job, ClientOptions options = {});
  /// Says goodbye; when an exception is on its way, it says that too.
  ~Client();
  Client(const Client&) = delete;
  Client& operator=(const Client&) = delete;

  const Job& job() const { return job_; }
  /// For waits that begin from now on; null: as at first.
  void limit_waits(const WaitLimit* limit) {
    limit_ = limit != nullptr ? *limit : WaitLimit{options_.timeout, options_.timeout_setting};
  }
  int worker() const { return worker_; }
  const std::vector<space::Bucket>& buckets() const { return buckets_; }
  const std::vector<Chunk>& chunks() const { return chunks_; }
  /// Its server is on this machine.
  bool is_local(const Chunk& chunk) const;
  /// "shared memory", "gRPC", "shared memory and gRPC"
  std::string lanes() const;

  /// The flat vectors: what push() reads and pull() writes. With in_place(), the parameters are the servers' own.
  std::byte* gradients() const { return memory_->gradients(); }
  std::byte* parameters() const { return parameters_; }
  /// A byte per slot: 0 where this worker has no gradient. All 1 at first.
  uint8_t* present() const { return memory_->present(); }
  bool in_place() const { return in_place_; }

  /// The gradients of a range go to its servers, which apply them under the job's rules. The range must not be written
  /// to before it is done.
  Pending push(space::Range range, const PushOptions& options);
  /// The parameters of a range.
  Pending pull(space::Range range, const PullOptions& options = {});
  /// parameters() of a range become the servers'.
  Pending set(space::Range range);
  void wait(const Pending& pending) { pending.wait(); }
  /// Of one worker, after pushes of everything with `hold` were done: the sum of squares of the summed gradients.
  /// Blocks.
  double squares();
  /// Then the gradients that are held count `factor` (0: not at all), and the version grows.
  Pending apply(double factor);

  /// All that follows blocks.
  /// Until all workers have come.
  void barrier();
  /// Until this worker may begin the step. False when the workers stop before it: `stop` asks for that, and they all
  /// stop before the same step.
  bool begin(int64_t step, bool stop = false);
  /// The next of an epoch's `pieces` that nobody has taken, once its step may begin. `stop` ends the work for all
  /// workers.
  Lease take(int64_t epoch, int64_t first_step, int64_t pieces, int64_t pieces_per_step, bool stop);
  /// The update lock, if this worker tries and nobody else has it; otherwise a gradient is counted as dropped.
  bool lock(bool tries);
  void unlock();
  /// What every server has counted, for all its models.
  std::vector<metrics::Snapshot> counted();

  /// Rows by key; `table` is the number of the table in the job. Keys may repeat. `rows` is written when the pull is
  /// done; what push() is given was copied.
  Pending pull_rows(size_t table, std::span<const uint64_t> keys, float* rows);
  Pending push_rows(size_t table, std::span<const uint64_t> keys, const float* gradients, double lr);

  /// From any thread, once: every wait, now and later, ends with PeerLost for this reason.
  void interrupt(const std::string& reason) noexcept;
  /// Whether its last wait ended because somebody else is gone. If this worker stops after an error then, it is not to
  /// blame.
  bool victim() const { return victim_; }
  void become_victim() { victim_ = true; }

 private:
  friend class Pending;
  struct Line;
  struct Alarm;
  using Done = std::function<void(const Reply&)>;

  void connect(const Deadline& deadline);
  std::unique_ptr<Lane> connect_to(int server, const Deadline& deadline);
  void watch_servers();
  template <class Ready>
  bool wait_until(Patience& patience, const Deadline& deadline, const Ready& ready);
  bool fail_over();
  std::unique_ptr<Lane> other_server_for(Line& line, size_t shard, const Deadline& deadline, std::string& said);
  std::unique_ptr<Lane> try_server(Line& line, size_t shard, int server, const Deadline& deadline);
  void send_again(Line& line);
  void look_in_place();
  struct Load {
    std::span<const std::byte> data{};
    std::span<const uint8_t> present{};
    uint32_t urgency = 0;
    Done done{};  // called with the answer
  };
  void send(size_t server, Request request, const std::shared_ptr<Operation>& operation, Load load);
  Pending send_range(space::Range range, Request request, const char* what, const Encode& encode = {});
  Reply ask(size_t server, Request request, const char* what);
  void progress();
  void take_answer(Line& line, const Reply& reply, const std::string& text);
  void wait_for(const Operation& operation);
  void expect(const Operation& operation);
  Patience& patience_with(const Operation& operation);
  void give_up(bool in_time, const char* what, const Operation* operation = nullptr);
  std::string explain(Line& line, const Operation* operation);
  Pending send_rows(Verb verb, size_t table, std::span<const uint64_t> keys, const float* gradients, float* rows,
                    double lr);
  size_t stage(size_t bytes);
  std::string fault();

  const Meeting meeting_;
  Job job_;
  int worker_;
  ClientOptions options_;
  WaitLimit limit_;  // of the options, or of now
  std::vector<space::Bucket> buckets_;
  std::vector<Chunk> chunks_;
  std::vector<uint32_t> by_place_;  // chunks in the order of the flat space
  std::shared_ptr<shm::Memory> memory_;
  std::shared_ptr<Segment> shared_parameters_;
  std::byte* parameters_ = nullptr;
  bool in_place_ = false;
  Patience patience_, lending_,
      asleep_;  // of short waits, and of long ones during which a server's helper needs this core
  bool lends_ = false;
  std::vector<Line> lines_;
  bool victim_ = false;     // the last wait ended because somebody else is gone
  std::string timed_out_;   // a wait was given up, for this reason: nothing more is waited for
  size_t staged_ = 0;       // bytes of the staging area in use
  size_t sparse_open_ = 0;  // sparse requests under way
  std::shared_ptr<Alarm> alarm_;
  std::unique_ptr<Watch> watch_;

 public:
  // State, see state/visitor.h. In client_state.cpp. All that talks to servers blocks, and is for the time between
  // steps, when no worker has anything under way.

  state::About about_state() const;
  /// Which worker carries which part of what the servers keep: chunks by turns.
  state::OwnerMap state_owners() const;
  /// This worker's part of it in parameters(), which are to be pulled before.
  std::vector<state::Part> state_parts() const;
  /// The optimizer's state of this worker's chunks; the rows of servers that it asks, which are shared out by turns.
  void visit_state(state::Visitor& visitor);
  /// Collective. This worker's chunks of parameters() become the servers', and their optimizer state comes from
  /// `source`. So do rows, any worker any of them, in the place of all that there were. restore_position() has to
  /// follow.
  void restore_state(state::Source& source);
  /// What servers know besides; when nobody changes it, the same for all workers.
  Position position();
  /// Collective. This worker is at step `clock`. Parameters are pulled.
  void restore_position(const Position& position, int64_t clock);

 private:
  static constexpr size_t kStateRoom = 256 << 10;  // bytes of state on their way at a time

  int carrier_of(const Chunk& chunk) const;
  Reply ask_staged(size_t server, Request request, std::span<const std::byte> data, std::span<std::byte> answer,
                   const char* what);
  size_t state_room() const;
  void carry_state(Verb verb, const Chunk& chunk, uint16_t vector, int worker, space::Range range,
                   std::span<std::byte> bytes);
  template <class Carry>
  void each_vector(const Chunk& chunk, const Carry& carry) const;
  std::vector<space::Range> owned_parts(const Chunk& chunk, uint16_t vector) const;
  void visit_rows(size_t server, size_t table, state::Visitor& visitor);
  void forget_rows();
  void restore_rows(size_t table, state::Source& source);
};

}  // namespace trireme::ps
