#pragma once
// The order of elements in memory and in files. A tensor is row-major in files; in memory a 4-d slot may be stored as
// N, H, W, C. Both orders have the same bytes in each row (each index of the first dim), so that rows are the unit.
#include <cstddef>
#include <cstdint>
#include <span>

#include <trireme/space/layout.h>

namespace trireme::checkpoint {

/// How memory and file are related. A value; the default: they are the same.
struct Order {
  size_t element = 1;                  // bytes
  size_t channels = 1, positions = 1;  // of a row: memory is [positions][channels], a file [channels][positions]

  static Order of(const space::Slot& slot);
  /// Memory and file have the same bytes.
  bool same() const { return channels == 1 || positions == 1; }
  size_t row_bytes() const { return element * channels * positions; }
  /// Where a byte of a row in memory is in the file's row.
  size_t in_file(size_t in_memory) const;
  /// A row as in memory to one as in a file, and back.
  void to_file(const std::byte* memory, std::byte* file) const;
  void to_memory(const std::byte* file, std::byte* memory) const;
};

}  // namespace trireme::checkpoint
