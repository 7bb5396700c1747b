#pragma once
// A vector of blocks, one for each rank, in the order of machines.
#include <vector>

#include <trireme/comm/counts.h>
#include <trireme/comm/hierarchical/topology.h>

namespace trireme::comm::hierarchical {

/// The blocks of a machine's ranks, one after another, are its *section*; the sections of all machines follow each
/// other. Each is cut into a slice per lane. Places are in bytes, counted in this order. For a call in several parts:
/// the same part of every block.
class Sections {
 public:
  Sections(const Topology& topology, const Blocks& blocks, int part, int parts);

  size_t bytes() const { return sections_.back().end; }
  int machines() const { return static_cast<int>(sections_.size()); }
  space::Range of_machine(int machine) const { return sections_[static_cast<size_t>(machine)]; }
  space::Range of_rank(int rank) const { return ranks_[static_cast<size_t>(rank)].here; }
  space::Range slice(int machine, int lane) const { return space::part_of(of_machine(machine), lane, lanes_); }
  /// A lane's slices of all machines, one after another: where that of a machine begins, and the bytes of all.
  size_t slices_before(int lane, int machine) const;
  size_t slices_bytes(int lane) const { return slices_before(lane, machines()); }
  /// Where the part of a rank's block begins in the vector.
  size_t in_vector(int rank) const { return ranks_[static_cast<size_t>(rank)].vector_begin; }

  /// Calls visit(range, vector) for each stretch of `what` that is in one piece in the vector, at `vector`.
  template <class Visit>
  void each(space::Range what, const Visit& visit) const {
    for (const Stretch& stretch : ranks_) {
      const space::Range both = intersect(what, stretch.here);
      if (!both.empty()) visit(both, stretch.vector_begin + (both.begin - stretch.here.begin));
    }
  }

 private:
  struct Stretch {
    space::Range here;
    size_t vector_begin = 0;
  };
  int lanes_;
  std::vector<Stretch> ranks_;
  std::vector<space::Range> sections_;
};

}  // namespace trireme::comm::hierarchical
