#include <algorithm>

#include <trireme/ps/plan.h>

namespace trireme::ps {
namespace {

std::string name_of(const space::Layout& layout, size_t first, size_t last) {
  return first + 1 == last ? layout[first].name : layout[first].name + " to " + layout[last - 1].name;
}

}  // namespace

std::vector<Chunk> plan_chunks(const space::Layout& layout, const std::vector<space::Bucket>& buckets, int servers,
                               size_t chunk_bytes) {
  const size_t most = std::max(space::kLine, chunk_bytes / space::kLine * space::kLine);
  std::vector<Chunk> chunks;
  for (size_t b = 0; b < buckets.size(); b++)
    for (int server = 0; server < servers; server++)
      for (space::Range rest = space::part_of(buckets[b].range, server, servers); !rest.empty();) {
        const space::Range range{rest.begin, std::min(rest.end, rest.begin + most)};
        size_t first = buckets[b].first, last = buckets[b].last;
        while (first + 1 < last && layout[first].range.end <= range.begin) first++;
        while (last > first + 1 && layout[last - 1].range.begin >= range.end) last--;
        chunks.push_back({static_cast<uint32_t>(chunks.size()), server, b, first, last, range, buckets[b].dtype,
                          name_of(layout, first, last)});
        rest.begin = range.end;
      }
  return chunks;
}

}  // namespace trireme::ps
