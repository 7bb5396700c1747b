#pragma once
// The ranks among which layers are divided.
//
// A layer takes a TensorGroup: a Group, a Mesh with an axis "tensor", or nothing. With nothing, or with a group of one,
// the rank is alone: the layer is an ordinary one, no collective is called, and nothing is added to the graph. Ranks of
// a tensor group compute with the same samples, so they must draw the same random numbers: seed by the data coordinate.
#include <torch/custom_class.h>
#include <torch/types.h>

#include <cstdint>
#include <string_view>

#include <trireme/cluster/mesh.h>

namespace trireme::layers {

/// A value. The calls that move data are collective and block; they see no graph (collectives.h has those that do).
/// Sums of f16 and bf16 are formed in f32.
class TensorGroup {
 public:
  /// This rank alone.
  TensorGroup() = default;
  TensorGroup(const Group& group);  // NOLINT(google-explicit-constructor)
  /// Its axis "tensor", if it has one.
  TensorGroup(const Mesh& mesh);  // NOLINT(google-explicit-constructor)

  bool alone() const { return !state_; }
  int rank() const;
  int size() const;

  /// What each rank has of `extent`; `what` is for the message: "heads". Throws InvalidArgument with the nearest
  /// extents that can be divided.
  int64_t share_of(std::string_view what, int64_t extent) const;
  /// This rank's part of a tensor that is cut along `dim`: a view.
  torch::Tensor part_of(const torch::Tensor& whole, int64_t dim) const;

  /// In place; `data` must be contiguous.
  void allreduce(torch::Tensor& data, Op op) const;
  /// All ranks' parts, one behind the other along `dim`.
  torch::Tensor all_gather(const torch::Tensor& part, int64_t dim) const;
  /// This rank's part, along `dim`, of the sum over all ranks.
  torch::Tensor reduce_scatter(const torch::Tensor& whole, int64_t dim) const;

  /// What a node of the graph keeps until backward.
  c10::IValue kept() const;
  static TensorGroup from(const c10::IValue& kept);

 private:
  struct State : torch::CustomClassHolder {
    explicit State(const Group& group) : group(group) {}
    const Group group;
  };
  c10::intrusive_ptr<State> state_;  // null: alone
};

}  // namespace trireme::layers
