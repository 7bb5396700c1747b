#pragma once
// The flat vectors of a model: where its parameters are read, and its gradients written. All slots of the layout are
// views of these, at the same offsets; the memory is the exchange's, and stays where it is as long as that lives.
//
// Whose gradient is in place is said slot by slot, by a flag for each. With virtual workers (tree.h) a rank has more
// than one gradient: each stands in a *seat*, with flags of its own. Not thread-safe; nothing blocks.
#include <cstddef>
#include <cstdint>
#include <vector>

#include <trireme/space/arena.h>
#include <trireme/space/layout.h>

namespace trireme::exchange {

class Flat {
 public:
  Flat(const Flat&) = delete;
  Flat& operator=(const Flat&) = delete;

  const space::Layout& layout() const { return layout_; }
  const std::vector<space::Bucket>& buckets() const { return buckets_; }
  std::byte* parameters() const { return vectors_.parameters; }
  std::byte* gradients() const { return vectors_.gradients; }
  /// Where sums over this rank's pieces stand; seat 0 is the one above.
  std::byte* gradients(int seat) const {
    return seat == 0 ? vectors_.gradients : vectors_.seats + static_cast<size_t>(seat - 1) * seat_bytes();
  }
  int seats() const { return vectors_.count; }

  /// This rank's gradient of a slot is in place. Slots that no rank has a gradient for are left as they are, as
  /// libtorch does.
  void present(size_t slot, int seat = 0) { flags(seat)[slot] = 1; }
  /// It is not, or not any more: the seat was folded into another.
  void absent(size_t slot, int seat) { flags(seat)[slot] = 0; }
  /// After land() of an exchange without optimizer: whether any rank had a gradient for the slot.
  bool was_present(size_t slot) const { return vectors_.present[slot] != 0; }

 protected:
  Flat(space::Layout layout, size_t bucket_bytes);
  ~Flat() = default;

  /// Set by the implementation's constructor, and the same from then on.
  struct Vectors {
    std::byte *parameters = nullptr, *gradients = nullptr;
    uint8_t* present = nullptr;  // of seat 0, then of the others
    std::byte* seats = nullptr;  // of gradients: those after seat 0, one behind another
    int count = 1;               // seats
  };
  /// One byte per slot: this rank has a gradient for it.
  uint8_t* flags(int seat = 0) const { return vectors_.present + static_cast<size_t>(seat) * layout_.size(); }
  size_t seat_bytes() const { return round_up(layout_.bytes(), space::kLine); }
  /// The whole of each bucket, for an updater that has all of its state here.
  std::vector<space::Range> bucket_ranges() const;

  space::Layout layout_;
  std::vector<space::Bucket> buckets_;
  Vectors vectors_;
};

}  // namespace trireme::exchange
