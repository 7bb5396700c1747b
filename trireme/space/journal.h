#pragma once
// What a process writes down before it changes something in memory that outlives it, so that others can make whole what
// it leaves half done.
//
// An update goes through a process's ranges in a fixed order, piece by piece. Before a piece is changed, its parameters
// and state are copied into an *entry*, which is then the latest. So whoever finds the journal later knows: what lies
// before the latest entry's piece was updated, what lies behind it was not, and the piece itself is in the entry as it
// was. Two entries take turns: while the next one is written, the one that counts stays as it is.
//
// A process that was given up for lost may live, and go on. After each entry it looks whether it was (`given_up`), and
// stops; as both sides write before they look, at most the piece of the entry that the others see is written to after
// that, and they have it from the entry.
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <vector>

#include <trireme/space/dtype.h>
#include <trireme/space/kernels.h>
#include <trireme/space/range.h>

namespace trireme::space {

/// One writer, in memory that others can read. Steps are counted by the caller, from 1.
class Journal {
 public:
  /// Elements of a piece: what is copied stays in a first-level cache until it is updated.
  static constexpr size_t kPiece = 2 * kBlock;

  /// Of a journal for a model of `slots` slots.
  static size_t bytes(size_t slots);
  /// In memory that was zero, or that has the journal.
  Journal(std::byte* memory, size_t slots);

  // ---- the writer ----

  /// Called behind each entry: throws when this process was given up for lost.
  void look(std::function<void()> given_up) { given_up_ = std::move(given_up); }
  /// An update begins. `steps` of each slot, as they are before it; empty where nobody counts them.
  void begin(uint64_t step, std::span<const int64_t> steps);
  /// A part of the given owned range is about to change: `homes` have its parameters and state vectors, `bytes` of
  /// each.
  void enter(uint64_t owned, Range piece, std::span<const std::byte* const> homes, size_t bytes);
  /// All of the update is done.
  void end(uint64_t step);

  // ---- whoever comes later ----

  struct Entry {
    uint64_t owned = 0;
    Range piece{};
    std::vector<std::span<const std::byte>> homes;  // as they were
  };
  bool ended(uint64_t step) const;
  bool begun(uint64_t step) const;
  /// The latest of a step; nothing when nothing was changed in it.
  std::optional<Entry> latest(uint64_t step) const;
  /// As they were before the step that has begun last.
  std::span<const int64_t> steps_before() const;

 private:
  static constexpr size_t kMostHomes = 3;
  static constexpr size_t kHomeBytes = kPiece * sizeof(double);
  struct alignas(64) Page {
    std::atomic<uint64_t> begun, ended, entries;
    struct Header {
      uint64_t step, owned, begin, end, homes, bytes;
    } headers[2];
  };
  std::byte* home(uint64_t entry, size_t number) const;

  Page* page_;
  std::byte* data_;
  int64_t* steps_;
  size_t slots_;
  std::function<void()> given_up_;
};

}  // namespace trireme::space
