#pragma once
// The optimizers over rows that lie scattered in memory: the formulas of space/kernels.cpp, a short row at a time. A
// call of those kernels per row would cost more than the row's arithmetic.
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <vector>

#include <trireme/space/updater.h>

namespace trireme::ps {

/// What a row carries besides floats, at the end of its memory and only where the table needs it.
struct RowTail {
  uint32_t steps = 0;    // updates of this row, for Adam's bias correction; stays at its largest value
  uint32_t touched = 0;  // the tick of the last use
};

/// A row in memory: `width` values, `vectors` times as many floats of optimizer state, and the tail.
struct RowShape {
  size_t width = 0;
  size_t vectors = 0;
  bool tail = false;

  static RowShape of(const space::UpdaterOptions& optimizer, size_t width, bool ages);

  size_t floats() const { return width * (1 + vectors); }
  /// Floats from one row to the next: rows begin at multiples of 16 bytes, and those of 16 floats without state fill
  /// cache lines.
  size_t stride() const { return (floats() + (tail ? sizeof(RowTail) / sizeof(float) : 0) + 3) / 4 * 4; }

  RowTail tail_of(const float* row) const {
    RowTail read;
    if (tail) std::memcpy(static_cast<void*>(&read), row + floats(), sizeof read);
    return read;
  }
  void set_tail(float* row, RowTail written) const {
    if (tail) std::memcpy(row + floats(), &written, sizeof written);
  }
};

/// Fetches a row ahead of its use: its first lines, after which the processor sees the pattern by itself.
inline void prefetch_row(const float* row, size_t stride) {
  constexpr size_t kLine = 16, kMost = 8 * kLine;
  for (size_t at = 0; at < stride && at < kMost; at += kLine) __builtin_prefetch(row + at, 1);
}

constexpr size_t kRowsAhead = 12;  // rows fetched ahead: about as many as the processor keeps in flight

/// Adam's 1 − βᵗ. Rows are at different steps, and two powers per row would cost more than its update: they are kept by
/// step.
class Corrections {
 public:
  struct Pair {
    double first = 1, root_second = 1;  // 1 − β₁ᵗ and √(1 − β₂ᵗ)
  };
  Corrections(double beta1, double beta2);
  Pair at(uint32_t step);

 private:
  Pair compute(uint32_t step) const;
  double beta1_, beta2_;
  std::vector<Pair> known_;  // by step; never grows beyond what was reserved at birth
};

/// One optimizer for rows of one shape. Not thread-safe.
class RowUpdater {
 public:
  RowUpdater(const space::UpdaterOptions& optimizer, const RowShape& shape)
      : optimizer_(optimizer), shape_(shape), corrections_(optimizer.beta1, optimizer.beta2) {}

  /// Updates rows[k] with gradients[k], as many of these as rows; each row occurs once. Counts the rows' steps. Throws
  /// nothing.
  void update(std::span<float* const> rows, const float* const* gradients, double lr);

 private:
  space::UpdaterOptions optimizer_;
  RowShape shape_;
  Corrections corrections_;
};

}  // namespace trireme::ps
