#pragma once
// What workers and servers must agree on. The first worker tells a server; all others are compared with it.
#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include <trireme/compress/spec.h>
#include <trireme/ps/consistency.h>
#include <trireme/ps/sparse_table.h>
#include <trireme/space/layout.h>
#include <trireme/space/updater.h>

namespace trireme::ps {

struct Job {
  space::Layout layout;  // may be empty: sparse tables only
  int workers = 1, servers = 1;
  size_t bucket_bytes = 1 << 20;  // the layout's buckets: what workers push at a time
  size_t chunk_bytes = 1 << 20;   // the largest chunk
  space::UpdaterOptions optimizer{};
  Rules rules{};
  std::vector<SparseTable::Options> tables;
  compress::Spec codec{};  // of gradients that workers on other machines push; what it needs to know is in coded.h
  std::vector<std::string> codec_excludes;  // names of parameters that travel as they are, with * and ?
  int replicas = 0;                         // servers beside the first that have each chunk and row

  /// As text; equal jobs have equal texts.
  std::string encode() const;
  /// Throws InvalidArgument for anything that is not a job that this library could have encoded. The text may come from
  /// anywhere.
  static Job decode(const std::string& text);
};

/// How many threads help each server with long passes over memory: as many as there are cores that nobody computes on
/// meanwhile, three at most, as the memory is not faster for more. One worker is not counted: it waits for what it has
/// pushed.
constexpr int helpers_for(int workers, int servers, int cores) {
  return std::clamp((cores - (workers - 1) - servers) / servers, 0, 3);
}
/// Whether a helper has no other core than that of a worker that waits.
constexpr bool lends_core(int workers, int servers, int cores) {
  const int helpers = helpers_for(workers, servers, cores);
  return helpers > 0 && workers + servers * (1 + helpers) > cores;
}

/// Where two jobs differ, as a sentence; "" when they do not.
std::string first_difference(const std::string& mine, int my_worker, const std::string& theirs, int their_worker);

}  // namespace trireme::ps
