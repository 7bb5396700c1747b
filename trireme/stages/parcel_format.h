#pragma once
// A parcel as one block of bytes, in shared memory and on the wire: a head, a fixed record for each tensor, then the
// tensors' data, each at a multiple of kParcelAlign from the beginning. Both sides are of one machine type, so numbers
// are as they are in memory.
#include <deque>
#include <map>
#include <optional>

#include <trireme/stages/parcels.h>

namespace trireme::stages {

constexpr size_t kParcelAlign = 64;

/// Of the whole block. Throws InvalidArgument for what does not fit the format.
size_t packed_bytes(const Label& label, std::span<const TensorView> tensors);
/// `to` has packed_bytes().
void pack(const Label& label, std::span<const TensorView> tensors, std::byte* to);

struct Unpacked {
  Label label;
  std::vector<TensorView> tensors;  // of the block's memory
};
/// Believes nothing: throws Corruption, which names the rank that it is from, unless the block is what pack() makes.
Unpacked unpack(const std::byte* block, size_t bytes, int from);

/// Parcels that have come, by label.
class KeptParcels {
 public:
  bool has(const Label& label) const { return parcels_.contains(label); }
  void add(const Label& label, Parcel parcel) { parcels_[label].push_back(std::move(parcel)); }
  /// There must be one.
  Parcel take(const Label& label);

 private:
  std::map<Label, std::deque<Parcel>> parcels_;  // no empty queues
};

}  // namespace trireme::stages
