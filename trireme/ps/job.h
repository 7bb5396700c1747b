#pragma once
// What workers and servers must agree on. The first worker tells a server; all others are compared with it.
#include <cstdint>
#include <string>
#include <vector>

#include <trireme/ps/consistency.h>
#include <trireme/space/layout.h>
#include <trireme/space/updater.h>

namespace trireme::ps {

/// How a new row of a sparse table begins.
enum class Fill : uint8_t { zeros, uniform, normal };

/// A table of rows that exist from their first use on.
struct TableSpec {
  std::string name;
  uint32_t width = 16;  // floats of a row
  space::UpdaterOptions optimizer{};
  Fill fill = Fill::normal;
  double scale = 0.01;        // uniform: in ±scale; normal: standard deviation
  uint64_t seed = 1;          // a row's first value depends on (seed, table, key) alone
  uint64_t evict_after = 0;   // pushes to the table after which an unused row goes; 0: never
  uint64_t most_rows = 1u << 26;
};

struct Job {
  space::Layout layout;  // may be empty: sparse tables only
  int workers = 1, servers = 1;
  size_t bucket_bytes = 1 << 20;  // the layout's buckets: what workers push at a time
  size_t chunk_bytes = 1 << 20;   // the largest chunk
  space::UpdaterOptions optimizer{};
  Rules rules{};
  std::vector<TableSpec> tables;

  /// As text; equal jobs have equal texts.
  std::string encode() const;
  /// Throws InvalidArgument for anything that is not a job that this library could have encoded. The text may come from anywhere.
  static Job decode(const std::string& text);
};

/// Where two jobs differ, as a sentence; "" when they do not.
std::string first_difference(const std::string& mine, int my_worker, const std::string& theirs, int their_worker);

}  // namespace trireme::ps
