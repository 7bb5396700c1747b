#pragma once
// The whole model, of whose tensors the ranks of a mesh hold parts.
//
// A mesh of data × tensor has as many replicas of a model as its data axis has ranks; each replica is in parts on the
// ranks across; in a pipeline, a rank has a stage: some of the tensors. An exchange knows the ranks along the data
// axis, which have the same part. What is of the whole model is put together here: who holds what of it (owners), and
// its tensors as the ordinary model has them. Not installed.
#include <torch/types.h>

#include <memory>
#include <vector>

#include <trireme/cluster/group.h>
#include <trireme/space/layout.h>
#include <trireme/state/owners.h>
#include <trireme/state/whole.h>

namespace trireme {

/// One thread.
class Assembly {
 public:
  /// Collective among `whole`, whose ranks are those of `data` on this axis and of `model` across it. `all` has every
  /// tensor of the model, with this rank's part of it; those that are `here` are in its space, which `owners`, what an
  /// exchange says of the ranks of `data`, speaks of. Throws InvalidArgument, with the name, where nobody has a part of
  /// a tensor.
  Assembly(const Group& whole, const Group& data, const Group& model, const space::Layout& all,
           const std::vector<bool>& here, const state::OwnerMap& owners);

  /// This rank's space in that of the whole.
  const std::shared_ptr<const state::Whole>& map() const { return map_; }
  /// Which rank of the whole has which range of which of the whole's vectors. Nobody is asked.
  state::OwnerMap owners() const;
  /// Of a rank of the whole, among those that have its part.
  int data_rank(int rank) const { return places_[static_cast<size_t>(rank)].data; }
  /// Of a rank of the whole, in its replica.
  int model_rank(int rank) const { return places_[static_cast<size_t>(rank)].model; }
  /// Whether a rank of the replica has the tensor, or a part of it; `slot` is one of all the model's.
  bool has(int model_rank, size_t slot) const { return index_of(model_rank, slot) != kAbsent; }
  /// Collective among the ranks of a replica: a logical tensor, row-major, from this rank's part of it; `part` is not
  /// looked at where this rank has none. A copy.
  torch::Tensor tensor(size_t slot, const torch::Tensor& part) const;

 private:
  struct Place {
    int32_t data = 0, model = 0;
  };
  static constexpr int32_t kWhole = -1, kAbsent = -2;
  void find_parts(const std::vector<bool>& here);
  int32_t index_of(int model_rank, size_t slot) const {
    return indices_[static_cast<size_t>(model_rank) * all_.size() + slot];
  }
  torch::Tensor from_first_holder(size_t slot, const torch::Tensor& part) const;
  void share(const state::OwnerMap& owners);
  space::Layout layout_of(int part) const;
  int rank_at(int data, int model) const;

  Group model_;
  space::Layout all_;  // every tensor, with this rank's part of it
  std::shared_ptr<const state::Whole> map_;
  std::vector<Place> places_;           // by rank of the whole
  std::vector<int32_t> indices_;        // by rank of the replica, then by slot of the model: which part it has
  std::vector<state::OwnerMap> owned_;  // by rank of the replica: of the ranks with the same part, in their space
};

}  // namespace trireme
