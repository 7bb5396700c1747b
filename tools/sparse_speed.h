#pragma once
// How fast a sparse table is on this machine.
#include <trireme/base/clock.h>
#include <trireme/ps/sparse_table.h>

namespace trireme::tools {

struct SparseSpeed {
  double pull = 0, push = 0;  // keys per second: the median call
  double create = 0;          // rows per second, made by pulls
  size_t bytes = 0;           // of the table
};

/// Fills a table with `rows` rows, then pulls and pushes `keys` random ones at a time (some occur twice) for about
/// `time` each. Uses one core.
SparseSpeed measure_sparse(const ps::SparseTable::Options& options, size_t rows, size_t keys, Seconds time);

}  // namespace trireme::tools
