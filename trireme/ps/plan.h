#pragma once
// Which server keeps which part of the flat space: a pure function of the layout.
#include <cstdint>
#include <string>
#include <vector>

#include <trireme/space/layout.h>

namespace trireme::ps {

/// What travels, is versioned and is updated as one.
struct Chunk {
  uint32_t index = 0;  // in the plan
  int server = 0;
  size_t bucket = 0;           // that it is cut from
  size_t first = 0, last = 0;  // slots that it has a part of
  space::Range range{};
  DType dtype = DType::f32;
  std::string name;  // of its slots, for messages
};

/// Every bucket is cut into equal parts, one per server, and these into pieces of at most `chunk_bytes`: whatever the
/// sizes of the layers, servers have the same load within a cache line per bucket, at every moment of the backward
/// pass.
std::vector<Chunk> plan_chunks(const space::Layout& layout, const std::vector<space::Bucket>& buckets, int servers,
                               size_t chunk_bytes);

/// Which server keeps the rows of a key. A table's own hash must not see keys that another one has sorted: this one
/// takes other bits.
inline size_t server_of_key(uint64_t key, size_t servers) {
  return servers == 1 ? 0 : (key * 0xd6e8feb86659fd93 >> 40) % servers;
}

}  // namespace trireme::ps
