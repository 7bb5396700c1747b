#pragma once
// Collectives inside one machine, in shared memory.
#include <array>
#include <deque>
#include <optional>

#include <trireme/comm/communicator.h>
#include <trireme/comm/shm/rounds.h>
#include <trireme/space/range.h>

namespace trireme::comm::shm {

struct Options {
  Seconds timeout{60};                      // deadline of every wait
  std::string timeout_setting = "timeout";  // what error messages call it
  size_t stage_bytes = 1 << 17;  // of one stage, for data that is not in the segment; each rank has kStages of them
  std::vector<int> names{};  // what messages call the ranks, where they have other numbers in the job; default: 0, 1, …
  metrics::Registry* registry = nullptr;  // where waits are counted; null: nowhere
};

/// A block of the segment that every rank reaches: `parts[r]` is rank r's, as mapped here.
struct SharedBlock {
  std::vector<std::byte*> parts;
  size_t bytes = 0;  // of each part
};

/// Two ways through memory. Data inside the segment (arenas) is reduced in place: each rank reads its slice of
/// everybody's data and writes the result back to all. Private data goes through each rank's *stage*, chunk by chunk:
/// copy in, meet, read the peers' stages.
class Communicator final : public comm::Communicator {
 public:
  /// Collective. `segment` must be the same memory in every rank, and empty.
  Communicator(std::shared_ptr<Segment> segment, int rank, int ranks, Options options = {});

  int rank() const override { return rounds_.rank(); }
  int size() const override { return rounds_.ranks(); }
  void allreduce(void* data, size_t count, DType type, Op op, std::string_view name) override;
  std::unique_ptr<Work> start_allreduce(void* data, size_t count, DType type, Op op, std::string_view name) override;
  void reduce_scatter(const void* input, void* output, size_t count, DType type, Op op, std::string_view name) override;
  void all_gather(const void* input, void* output, size_t count, DType type, std::string_view name) override;
  void broadcast(void* data, size_t count, DType type, int root, std::string_view name) override;
  void all_to_all(const void* input, void* output, size_t count, DType type, std::string_view name) override;
  void send(const void* data, size_t count, DType type, int to, std::string_view name) override;
  void receive(void* data, size_t count, DType type, int from, std::string_view name) override;
  void barrier(std::string_view name) override;

  /// Collective: zeroed memory, `bytes` for each rank, reachable by all. Lives as long as the communicator.
  SharedBlock allocate(size_t bytes, const char* purpose);

  /// The mechanism below, for exchanges that do their own work in a round.
  Rounds& rounds() { return rounds_; }
  Segment& segment() { return *segment_; }

 private:
  class Handle;
  struct Mail;
  struct Open {  // an allreduce on segment memory that was started
    uint32_t round;
    size_t count;
    DType type;
    Op op;
    bool reduced = false;  // this rank's slice
  };

  static constexpr uint32_t kStages = 4;  // per rank, used in turn
  static constexpr uint32_t kLead = 2;    // pieces that a rank stages before it consumes the first

  std::byte* stage(int rank, uint32_t turn) const {
    return stages_.parts[static_cast<size_t>(rank)] + turn % kStages * options_.stage_bytes;
  }
  uint32_t claim_stage();
  template <class CopyIn, class Consume>
  void staged(Fingerprint what, space::Range bytes, size_t chunk, std::string_view name, const CopyIn& copy_in,
              const Consume& consume);
  void reduce_slice(uint32_t round, size_t count, DType type, Op op);
  void allreduce_staged(std::byte* data, space::Range bytes, Fingerprint what, std::string_view name);
  void reduce_staged(std::byte* data, size_t bytes, uint32_t turn, DType type, Op op);
  void advance(bool block);
  void complete_open();
  Mail& mail(int from, int to) const;
  uint64_t locate(const void* data) const { return segment_->offset_of(data).value_or(kPrivate); }

  std::shared_ptr<Segment> segment_;
  Options options_;
  Rounds rounds_;
  size_t cursor_;  // end of what was allocated in the segment; equal in all ranks
  SharedBlock stages_;
  SharedBlock mails_;  // part `from` holds its letters to everybody
  size_t letter_bytes_ = 0;
  uint32_t turn_ = 0;  // stages used so far; a stage's number is its turn modulo kStages
  std::array<std::optional<uint32_t>, kStages> stage_round_;  // the last round that used a stage
  std::deque<Open> open_;                                     // in the order of their rounds
};

}  // namespace trireme::comm::shm
