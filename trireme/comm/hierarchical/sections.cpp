#include <trireme/comm/hierarchical/sections.h>

namespace trireme::comm::hierarchical {

Sections::Sections(const Topology& topology, const Blocks& blocks, int part, int parts)
    : lanes_(topology.lanes()), ranks_(static_cast<size_t>(topology.size())) {
  size_t place = 0;
  for (int m = 0; m < topology.machines(); m++) {
    const size_t begin = place;
    for (const int rank : topology.ranks_on(m)) {
      const space::Range share = space::part_of(blocks.of(rank), part, parts);
      ranks_[static_cast<size_t>(rank)] = {{place, place + share.size()}, share.begin};
      place += share.size();
    }
    sections_.push_back({begin, place});
  }
}

size_t Sections::slices_before(int lane, int machine) const {
  size_t bytes = 0;
  for (int m = 0; m < machine; m++) bytes += slice(m, lane).size();
  return bytes;
}

}  // namespace trireme::comm::hierarchical
