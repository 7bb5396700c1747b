#pragma once
// Ranks in a grid with named axes, for programs that divide their work in more than one way. Row-major: the last axis
// is the fastest, so that neighbours in it are neighbours in rank.
//
//   Mesh mesh = world.mesh({{"data", 2}, {"tensor", 2}});     // rank 0: (0, 0), rank 1: (0, 1), rank 2: (1, 0), …
//   mesh.group("data")                                        // with those whose other coordinates are the same
//   mesh.across("data")                                       // with those whose coordinate in it is the same
//   auto train = parallel(mesh, *net, …);                     // samples are divided along "data"
#include <string>
#include <vector>

#include <trireme/cluster/group.h>

namespace trireme {

struct Axis {
  std::string name;
  int size = 1;
};

/// A value, as its groups are.
class Mesh {
 public:
  /// Collective among `whole`. Throws Mismatch when ranks give different axes, InvalidArgument when the axes do not
  /// multiply to the group, and when a name is empty or comes twice.
  Mesh(const Group& whole, std::vector<Axis> axes);

  const std::vector<Axis>& axes() const { return axes_; }
  /// "data 2 × tensor 2"
  std::string describe() const;
  bool has(const std::string& axis) const;
  /// All ranks of the mesh, in its order.
  const Group& whole() const { return whole_; }
  /// Of this rank, with those that have its coordinates in all other axes; rank() in it is the coordinate. Throws
  /// InvalidArgument when there is no such axis, as all do that take one.
  const Group& group(const std::string& axis) const;
  /// Of this rank, with all that have its coordinate in this axis, in the mesh's order: along "data", the ranks that
  /// hold the parts of one replica of a model. With two axes it is the other one's group.
  const Group& across(const std::string& axis) const;
  int coordinate(const std::string& axis) const;
  int size(const std::string& axis) const;

 private:
  size_t index_of(const std::string& axis) const;
  Group make_across(size_t axis) const;
  std::vector<Axis> axes_;
  Group whole_;
  std::vector<Group> groups_, across_;  // by axis
};

}  // namespace trireme
