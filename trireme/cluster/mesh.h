#pragma once
// Ranks in a grid with named axes, for programs that divide their work in more than one way. Row-major: the last axis
// is the fastest, so that neighbours in it are neighbours in rank.
//
//   Mesh mesh = world.mesh({{"data", 2}, {"tensor", 2}});     // rank 0: (0, 0), rank 1: (0, 1), rank 2: (1, 0), …
//   auto train = parallel(mesh.group("data"), *net, …);       // with those whose other coordinates are the same
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
  /// Of this rank, with those that have its coordinates in all other axes; rank() in it is the coordinate. Throws
  /// InvalidArgument when there is no such axis, as all do that take one.
  const Group& group(const std::string& axis) const;
  int coordinate(const std::string& axis) const;
  int size(const std::string& axis) const;

 private:
  size_t index_of(const std::string& axis) const;
  std::vector<Axis> axes_;
  std::vector<Group> groups_;  // by axis
};

}  // namespace trireme
