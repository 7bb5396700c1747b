#pragma once
// Which buckets' parameters are on this machine, where it owns parts only (ZeRO 3): what to gather and what to give up.
//
// A pass uses buckets in an order that is the same in every step. So the first pass learns it, and from then on the
// next ones are gathered ahead, as far as there is room, and what is given up is what will be used again last.
// Decisions depend on the uses alone, never on the clock: all ranks see the same uses, and so gather in the same order.
// Pure: no memory is touched here.
#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace trireme::exchange {

class Window {
 public:
  struct Action {
    enum Kind : uint8_t { gather, give_up } kind;
    size_t bucket;
    bool operator==(const Action&) const = default;
  };
  using Actions = std::vector<Action>;
  static constexpr int kPasses = 3;  // kinds of them

  /// `bytes`, by bucket: what has to be gathered of it. `room`: bytes that may be here at a time; an operator that uses
  /// more gets it nevertheless.
  Window(std::vector<size_t> bytes, size_t room);

  /// A pass begins: what the last one of that kind has used is what this one will.
  Actions begin(int pass);
  /// An operator uses these buckets now, while those that `pinned` counts are in use.
  Actions use(std::span<const size_t> buckets, std::span<const int> pinned);
  /// The operator of the last use that has not ended has; gradients are expected; a bucket became ready: for who
  /// replays them.
  void note_release() { note({Event::release, {}}); }
  void note_open() { note({Event::open, {}}); }
  void note_ready() { note({Event::ready, {}}); }
  /// Everything is given up: parameters change now. The pass has ended.
  Actions clear();
  /// The same, but the pass was not ended, and nothing is learned from it.
  Actions abandon();

  /// What happened in a pass. Whoever repeats it all decides as those did who computed.
  struct Event {
    enum Kind : uint8_t { use, release, open, ready } kind;
    std::vector<size_t> buckets;  // of a use
    bool operator==(const Event&) const = default;
  };
  /// Of the last pass of that kind.
  const std::vector<Event>& learned(int pass) const { return passes_[static_cast<size_t>(pass)].learned.events; }

  bool here(size_t bucket) const { return here_[bucket] != 0; }
  size_t bytes_here() const { return held_; }

 private:
  struct Course {
    std::vector<size_t> order;  // buckets as they were used, neighbours once
    std::vector<Event> events;
  };
  struct Log {
    Course learned, now;
  };
  const std::vector<size_t>& expected() const { return passes_[static_cast<size_t>(pass_)].learned.order; }
  void note(Event event) {
    if (pass_ >= 0) passes_[static_cast<size_t>(pass_)].now.events.push_back(std::move(event));
  }
  void end_pass();
  void follow(size_t bucket);
  size_t next_use(size_t bucket) const;
  bool make_room(size_t bytes, size_t before, std::span<const int> pinned, Actions& actions);
  void look_ahead(std::span<const int> pinned, Actions& actions);
  void gather(size_t bucket, Actions& actions);

  std::vector<size_t> bytes_;
  size_t room_, held_ = 0;
  std::vector<uint8_t> here_;
  std::vector<uint64_t> used_;  // by bucket: when it was used last
  uint64_t clock_ = 0;
  std::array<Log, kPasses> passes_;
  int pass_ = -1;      // that is under way
  size_t cursor_ = 0;  // in what was learned of it: the next use
};

}  // namespace trireme::exchange
