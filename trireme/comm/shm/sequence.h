#pragma once
// Collectives under way among the ranks of a machine, in the order of their calls.
//
// Each takes one round, and goes through the same phases: arrive; *up*, where ranks see what the others bring, in place
// or through the stages; *between*, where something else may happen to it, such as a trip to other machines; *down*,
// where some hand out what others need; finish. Several are under way at a time. Every phase is passed in the order of
// the calls, so that all ranks agree on it without a word, but a collective may go up while an earlier one is between.
#include <deque>
#include <optional>
#include <vector>

#include <trireme/comm/communicator.h>
#include <trireme/comm/shm/stages.h>

namespace trireme::comm::shm {

/// What a collective sees of its machine when all have arrived.
class View {
 public:
  /// `known`, by rank: of its memory, what this process is known to have mapped. Nothing is unmapped while a segment
  /// lives, and asking the segment each time would be a good part of a small collective.
  View(const Rounds& rounds, Segment& segment, std::vector<space::Range>& known, uint32_t round, void* own)
      : rounds_(rounds), segment_(segment), known_(known), round_(round), own_(static_cast<std::byte*>(own)) {}

  int rank() const { return rounds_.rank(); }
  int size() const { return rounds_.ranks(); }
  /// What error messages call a rank.
  int name_of(int rank) const { return rounds_.name_of(rank); }
  /// A part of the memory that a rank shows; its own, or in the segment. It may be an area of another group's, which
  /// this process has not mapped before.
  std::byte* memory(int r, space::Range part) const;
  bool all_in_segment() const;
  std::span<const uint64_t> counts_of(int r) const { return rounds_.counts_of(r, round_); }

 private:
  const Rounds& rounds_;
  Segment& segment_;
  std::vector<space::Range>& known_;
  uint32_t round_;
  std::byte* own_;
};

/// A chunk in everybody's stage.
class Posted {
 public:
  Posted(const Stages& stages, uint32_t number) : stages_(stages), number_(number) {}
  std::byte* by(int rank) const { return stages_.stage(rank, number_); }

 private:
  const Stages& stages_;
  uint32_t number_;
};

/// One collective. Chunks are numbered from 0, the same on all ranks of the machine.
class Collective {
 public:
  /// `memory` is what this rank shows to others, if it is in the segment. The caller keeps `name` until keep_name().
  Collective(const Fingerprint& what, std::string_view name, const void* memory)
      : what(what), name(name), memory(const_cast<void*>(memory)) {}
  virtual ~Collective() = default;
  Collective(const Collective&) = delete;
  Collective& operator=(const Collective&) = delete;
  void keep_name() { name = kept_ = std::string(name); }

  const Fingerprint what;
  std::string_view name;
  void* const memory;
  std::vector<uint64_t> counts;  // at most two for each rank, for the others to see

  /// All have arrived. Throws Mismatch where that shows that they do not fit together.
  virtual void plan(const View&) {}
  /// False for one that never works in place, even if everybody's memory is in the segment.
  virtual bool may_be_direct() const { return true; }
  /// Instead of chunks: everybody's memory is in the segment, or this rank is alone.
  virtual void work_direct(const View&) {}
  virtual size_t up_chunks() const { return 0; }
  virtual void post_up(std::byte* /*stage*/, size_t /*chunk*/) {}
  virtual void take_up(const View&, const Posted&, size_t /*chunk*/) {}
  /// Up is done. What is to be waited for before down; null: nothing.
  virtual Started launch() { return nullptr; }
  /// It has come back.
  virtual void land(const View&, bool /*direct*/) {}
  virtual size_t down_chunks(bool /*direct*/) const { return 0; }
  virtual void post_down(std::byte* /*stage*/, size_t /*chunk*/) {}
  virtual void take_down(const View&, const Posted&, size_t /*chunk*/) {}
  /// True where a rank is not done before all have finished: they use each other's memory.
  virtual bool together(bool direct) const { return direct; }

 private:
  std::string kept_;
};

/// Not thread-safe. start() does not wait for anybody.
class Sequence {
 public:
  Sequence(Rounds& rounds, Segment& segment, SharedBlock stages, size_t stage_bytes);
  /// Stages for collectives that come down.
  void add_down(SharedBlock stages) { down_.emplace(rounds_, std::move(stages), up_.stage_bytes()); }

  Started start(std::unique_ptr<Collective> what);
  /// One call in several parts, at most kMostParts, of which one goes up while another comes down.
  Started start(std::vector<std::unique_ptr<Collective>> parts);
  static constexpr size_t kMostParts = kAhead / 4;
  /// Start and wait, without taking memory.
  void run(Collective& what);
  /// Waits for all that was started.
  void complete();
  /// In waits for something else: moves what was started. True while there is some.
  bool attend();
  /// True while something is between: other threads use its memory.
  bool between() const;
  /// Drops all that was started. Blocks until nothing is between, well or not: whoever carries it has to be interrupted
  /// before.
  void abandon() noexcept;
  size_t stage_bytes() const { return up_.stage_bytes(); }

 private:
  class Handle;
  class Busy;
  struct Way {  // through the stages
    size_t chunks = 0, posted = 0, taken = 0;
    bool all_posted = false, all_taken = false;  // those of all collectives up to this one
  };
  struct Open {
    std::unique_ptr<Collective> owned;
    Collective* what;
    uint64_t call;  // parts of one call have the same
    uint64_t number;
    uint32_t round = 0;
    bool arrived = false, planned = false, direct = false, launched = false, landed = false, finished = false;
    Way up, down;
    Started between;
  };
  enum class Mode { look, block };

  View view(const Open& open) { return {rounds_, segment_, known_, open.round, open.what->memory}; }
  bool enter(Open& open, const Open* before, Mode mode, Then then);
  bool plan(Open& open, const Open* before, Mode mode);
  bool go_up(Open& open, const Open* before, Mode mode);
  bool launch(Open& open, const Open* before, Mode mode);
  bool land(Open& open, Mode mode);
  bool go_down(Open& open, const Open* before, Mode mode);
  bool finish(Open& open, const Open* before, Mode mode, Then then);
  bool move(Open& open, const Open* before, Mode mode);
  template <class Post, class Take>
  bool pass(Stages* stages, Way& way, const Way* before, Mode mode, std::string_view name, const Post& post,
            const Take& take);
  bool complete(const Open& open) const;
  void advance(Mode mode);

  Rounds& rounds_;
  Segment& segment_;
  std::vector<space::Range> known_;  // by rank, see View
  Stages up_;
  std::optional<Stages> down_;
  uint64_t next_call_ = 0, next_number_ = 0;
  bool busy_ = false;  // in a call of this class: attend() has nothing to do
  std::deque<Open> open_;
};

}  // namespace trireme::comm::shm
