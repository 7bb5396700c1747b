#pragma once
// The whole model, of whose tensors the ranks of a mesh hold parts.
//
// A mesh of data × tensor has as many replicas of a model as its data axis has ranks; each replica is in parts on the
// ranks across. An exchange knows the ranks along the data axis, which have the same part. What is of the whole model
// is put together here: who holds what of it (owners), and its tensors as the ordinary model has them. Not installed.
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
  /// Collective among `whole`, whose ranks are those of `data` on this axis and of `model` across it. `layout` is of
  /// this rank, `owners` what an exchange says of the ranks of `data`. Throws InvalidArgument, with the name, where
  /// nobody has a part of a tensor.
  Assembly(const Group& whole, const Group& data, const Group& model, const space::Layout& layout,
           const state::OwnerMap& owners);

  /// This rank's space in that of the whole.
  const std::shared_ptr<const state::Whole>& map() const { return map_; }
  /// Which rank of the whole has which range of which of the whole's vectors. Nobody is asked.
  state::OwnerMap owners() const;
  /// Of a rank of the whole, among those that have its part.
  int data_rank(int rank) const { return places_[static_cast<size_t>(rank)].data; }
  /// Collective among the ranks of a replica: a slot's logical tensor, row-major, from this rank's part of it. A copy.
  torch::Tensor tensor(size_t slot, const torch::Tensor& part) const;

 private:
  struct Place {
    int32_t data = 0, model = 0;
  };
  void find_parts(const space::Layout& layout);
  void share(const state::OwnerMap& owners);
  space::Layout layout_of(int part) const;
  int rank_at(int data, int model) const;

  Group model_;
  std::shared_ptr<const state::Whole> map_;
  std::vector<Place> places_;           // by rank of the whole
  std::vector<int32_t> indices_;        // by rank of the replica, then by slot: which part it has; -1: all
  std::vector<state::OwnerMap> owned_;  // by rank of the replica: of the ranks with the same part, in their space
};

}  // namespace trireme
