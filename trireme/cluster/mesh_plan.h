#pragma once
// Which rank has which place in a mesh.
//
// Ranks of a tensor group meet in every layer, stages of a pipeline in every micro-batch, and copies of the model once
// per step. So tensor groups are put inside machines first, then pipelines of them, then the rest. A plan is a pure
// function of where ranks are; it says why, and where a group had to cross machines after all. Ranks that launchers
// have dealt out to machines in turn get an order of their own.
//
//   Mesh mesh = mesh_for(world.group(), degrees_of(world.size(), {.tensor = 2}));     // axes "data" and "tensor"
#include <optional>
#include <string>
#include <vector>

#include <trireme/cluster/mesh.h>

namespace trireme::cluster {

/// How many ways a job is divided: copies of the model, stages of a copy, parts of each layer.
struct Degrees {
  int data = 1, pipeline = 1, tensor = 1;

  int ranks() const { return data * pipeline * tensor; }
  /// "data 2 × tensor 2"; of one rank "data 1"
  std::string describe() const;
  friend bool operator==(const Degrees&, const Degrees&) = default;
};

/// With all the copies of the model that so many workers make: their number divided by the other degrees. Throws
/// InvalidArgument when it does not divide, with degrees and numbers of workers near it that do.
Degrees degrees_of(int workers, Degrees degrees);

/// What a job of `before` goes on with when only so many workers are left: with as many copies of the model as they
/// make, and where they are too few for one with fewer stages or parts of layers, of which degrees only divisors are
/// sure to suit the model. `fixed_stages`: their number cannot change. None when they are too few for that.
std::optional<Degrees> degrees_within(int workers, const Degrees& before, bool fixed_stages);

struct MeshPlan {
  Degrees degrees;
  std::vector<int> order;  // ranks by place, row-major over data, pipeline, tensor; rank 0 comes first
  bool crosses = false;    // a group that should share a machine does not
  std::string reason;      // a sentence
};

/// `machine_of`: of each rank. Throws InvalidArgument when degrees do not multiply to the ranks.
MeshPlan plan_mesh(const std::vector<int>& machine_of, const Degrees& degrees);
/// Of the ranks of a group, by where they are. Not collective.
MeshPlan plan_mesh(const Group& whole, const Degrees& degrees);

/// Collective among `whole`: its ranks in the planned order, with the axis "data", and "pipeline" and "tensor" where
/// they have more than one rank.
Mesh mesh_for(const Group& whole, const MeshPlan& plan);
Mesh mesh_for(const Group& whole, const Degrees& degrees);

}  // namespace trireme::cluster
