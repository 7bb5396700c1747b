#pragma once
// How data that is not in the segment passes from rank to rank of a machine.
//
// Vocabulary. What a collective moves is cut into *chunks*, which are counted over all collectives, so that every rank
// knows every chunk by its number. Each rank has a few *stages*, used in turn. For every chunk each rank *posts* its
// part, by copying it to its stage, and when all have posted, *takes* what it needs from everybody's. A stage is used
// again when all have taken what was in it.
//
// Ranks need no agreement beyond the order of the chunks: what they are about was compared in the collective's round.
#include <trireme/comm/shm/rounds.h>

namespace trireme::comm::shm {

/// A block of the segment that every rank reaches: `parts[r]` is rank r's, as mapped here.
struct SharedBlock {
  std::vector<std::byte*> parts;
  size_t bytes = 0;    // of each part
  bool found = false;  // an earlier group has made it: it holds what that one left
};

/// This rank's place at the stages. Not thread-safe. Only await_…() waits, with the deadline of the rounds; `name` is
/// the collective's, for messages.
class Stages {
 public:
  static constexpr uint32_t kStages = 4;  // per rank
  static constexpr uint32_t kLead = 2;    // chunks that a rank posts before it takes the first

  static size_t bytes(size_t stage_bytes) { return kHead + kStages * stage_bytes; }
  /// `block` has bytes(stage_bytes) for each rank, and zeros to begin with.
  Stages(Rounds& rounds, SharedBlock block, size_t stage_bytes);

  size_t stage_bytes() const { return stage_bytes_; }
  std::byte* stage(int rank, uint32_t chunk) const {
    return block_.parts[static_cast<size_t>(rank)] + kHead + chunk % kStages * stage_bytes_;
  }
  uint32_t posted() const { return posted_; }
  uint32_t taken() const { return taken_; }

  /// Whether the stage of the next chunk is free.
  bool room() { return taken_by_all(posted_ - kStages); }
  void await_room(std::string_view name) { await_all(posted_ - kStages, &Counters::taken, known_taken_, name); }
  /// The next chunk is in its stage. Quietly: others are woken when this rank arrives or waits.
  void post(bool quietly = false);
  bool posted_by_all(uint32_t chunk);
  void await_posted(uint32_t chunk, std::string_view name) { await_all(chunk, &Counters::posted, known_posted_, name); }
  /// This rank has what it needs of the next chunk. Quietly: as above.
  void take(bool quietly = false);
  /// What the others had posted when they arrived at a round.
  void learn(uint32_t round);

 private:
  struct Counters {
    std::atomic<uint32_t> posted, taken;  // chunks
  };
  static constexpr size_t kHead = 128;
  using Known = std::vector<uint32_t>;  // by rank: a lower bound, so that lines in other caches are rarely looked at

  Counters& counters(int rank) const { return *reinterpret_cast<Counters*>(block_.parts[static_cast<size_t>(rank)]); }
  bool taken_by_all(uint32_t chunk);
  bool beyond(int rank, uint32_t chunk, std::atomic<uint32_t> Counters::*counter, Known& known) const;
  void await_all(uint32_t chunk, std::atomic<uint32_t> Counters::*counter, Known& known, std::string_view name);

  Rounds& rounds_;
  SharedBlock block_;
  size_t stage_bytes_;
  uint32_t posted_ = 0, taken_ = 0;
  Known known_posted_, known_taken_;
};

}  // namespace trireme::comm::shm
