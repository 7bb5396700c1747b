#pragma once
// The server's store of embedding rows: rows of floats found by 64-bit keys, with the optimizer's state beside them.
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include <trireme/base/error.h>
#include <trireme/ps/row_update.h>
#include <trireme/space/arena.h>
#include <trireme/space/updater.h>
#include <trireme/state/visitor.h>

namespace trireme::ps {

/// A table may not have as many rows as were asked for. The call changed nothing.
class TableFull : public Error {
  using Error::Error;
};

/// Rows that exist from their first use on. Any number is a key. Not thread-safe; nothing blocks. Memory: a row's
/// floats and state, and 26 to 51 bytes to find it.
///
/// Open addressing over slots of 16 bytes that name a row by number; rows are dense, in slabs that never move. Every
/// loop fetches the slots and rows of the keys that come next while it works on one, since each is a cache miss.
class SparseTable {
 public:
  static constexpr size_t kMostWidth = 1 << 16;        // floats of a row
  static constexpr uint64_t kMostRows = 0xffff'fff0;   // rows have numbers of 32 bits
  static constexpr size_t kMostKeys = 0x7fff'ffff;     // of one call
  static constexpr uint64_t kMostTicks = 0x7fff'ffff;  // largest evict_after

  /// How a new row begins.
  enum class Fill : uint8_t { zeros, uniform, normal };

  struct Options {
    std::string name;  // of the table: for messages, and part of what decides a row's first value
    size_t width = 16;
    space::UpdaterOptions optimizer{};  // its lr is not used: every push brings one
    Fill fill = Fill::zeros;
    double scale = 0.01;       // uniform: in [−scale, scale); normal: the standard deviation
    uint64_t seed = 1;         // a row's first value depends on (seed, name, key) alone, on any server and in any order
    uint64_t evict_after = 0;  // a row not used for so many ticks goes; 0: never
    uint64_t most_rows = 1u << 26;  // more are refused with TableFull
  };

  /// A row as a checkpoint sees it. The spans live until the table changes.
  using Row = state::Row;

  /// Throws InvalidArgument for options that make no sense.
  explicit SparseTable(const Options& options);

  /// Copies the rows of `keys` to `out`, width floats for each, in order. A key may occur several times. Rows that do
  /// not exist are made. Throws TableFull, or IoError when the system has no memory; then no row was made, and `out`
  /// holds nothing of use.
  void pull(std::span<const uint64_t> keys, float* out);
  /// One update of each row that occurs: gradients of equal keys are summed first, in the order in which they stand, as
  /// they are one batch's gradient of one row; so the order of different keys does not matter, and Adam counts one
  /// step. Rows that do not exist are made first. Gradients are not searched for NaN. Throws as pull() does, and
  /// InvalidArgument for a rate that is no number of at least 0; then nothing was applied.
  void push(std::span<const uint64_t> keys, const float* gradients, double lr);

  /// The next tick of the clock that ages rows: call it once per step. Every eighth part of evict_after it evicts.
  /// Returns how many rows went.
  size_t tick();
  /// Forgets the rows that were neither pulled nor pushed in the last evict_after ticks and gives their memory back;
  /// when such a key comes again, its row begins anew. Reads the whole table. Returns how many rows went.
  size_t evict();

  size_t rows() const { return rows_; }
  /// Memory held: slots, rows, and the room that the largest call so far needed.
  size_t bytes() const;
  const Options& options() const { return options_; }

  /// Calls visit for every row, in no particular order. visit must not change the table.
  void for_each(const std::function<void(const Row&)>& visit) const;
  /// Puts a row back as for_each gave it, over one that may exist. Throws InvalidArgument when its sizes are not the
  /// table's, and TableFull.
  void restore(const Row& row);
  /// The same for at most `most` rows. Begins at `from`, 0 or what the call before has returned; std::nullopt: these
  /// were the last. The table must not change in between.
  std::optional<size_t> for_some(size_t from, size_t most, const std::function<void(const Row&)>& visit) const;
  /// The clock that ages rows, and when unused ones were looked for last: before rows are put back, so that they go
  /// when they would have gone.
  struct Ages {
    uint32_t now = 0, swept = 0;
  };
  Ages ages() const { return {now_, swept_}; }
  void set_ages(const Ages& ages) { now_ = ages.now, swept_ = ages.swept; }
  /// Forgets all rows. What is not in rows stays: when unused ones are looked for next.
  void clear();

 private:
  struct Slot {
    uint64_t key;
    uint32_t row;   // its number + 1; 0: the slot is empty
    uint32_t mark;  // where the key stood among the distinct ones of some earlier push; proves nothing by itself
  };

  template <bool grouped>
  bool locate(std::span<const uint64_t> keys);
  void create_missing(std::span<const uint64_t> keys);
  void reserve(size_t rows);
  void resize_slots(size_t capacity, const std::vector<bool>& dropped);
  Slot& create(uint64_t key);
  void initialise(uint64_t key, float* row) const;
  void sum_groups(size_t keys, const float* gradients);
  void touch(std::span<float* const> rows) const;
  void check_call(std::span<const uint64_t> keys) const;
  std::vector<bool> stale_rows() const;
  void close_holes(const std::vector<bool>& dropped, size_t left);

  size_t home_of(uint64_t key) const;
  Slot& slot_of(uint64_t key) const;
  float* row_at(size_t number) const {
    return reinterpret_cast<float*>(slabs_[number >> slab_bits_].data()) + (number & slab_mask_) * stride_;
  }

  Options options_;
  RowShape shape_;
  RowUpdater updater_;
  uint64_t fill_seed_ = 0;
  size_t stride_ = 0;  // floats from one row to the next
  int slab_bits_ = 0;  // a slab has 2^slab_bits_ rows
  size_t slab_mask_ = 0;
  size_t rows_ = 0;
  uint32_t now_ = 0, swept_ = 0;  // ticks, modulo 2³²

  space::Arena slots_memory_;
  Slot* slots_ = nullptr;
  size_t capacity_ = 0;  // slots: a power of two
  int shift_ = 64;       // a hash's upper bits are the slot
  std::vector<space::Arena> slabs_;

  // Of the current call; kept, because the next one is likely to be as large.
  std::vector<float*> found_;    // the rows of its keys; of its distinct keys in a push
  std::vector<uint32_t> group_;  // push: which of the distinct keys each one is
  size_t distinct_ = 0;
  std::vector<const float*> gradients_;  // push: of the distinct keys; the caller's, or in sums_
  std::vector<float> sums_;              // of the keys that occur more than once
};

}  // namespace trireme::ps
