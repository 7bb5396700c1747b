#pragma once
// Gradients that are born in their place.
//
// Autograd computes a weight's gradient into memory that it allocates itself; copying it to the flat space costs a read
// and two writes of the whole model in every step. But a backward pass makes the same allocations in the same order as
// the one before. So: watch which allocation of a backward pass becomes which gradient, and in the next pass hand out
// that gradient's own place in the flat space. A guess that turns out wrong costs the copy, no more.
#include <torch/types.h>

#include <cstddef>
#include <map>
#include <memory>
#include <vector>

namespace trireme {

class Placement {
 public:
  /// `homes`: where each slot's gradient belongs. Only those of at least kLeast bytes take part.
  explicit Placement(const std::vector<torch::Tensor>& homes);
  ~Placement();
  Placement(const Placement&) = delete;
  Placement& operator=(const Placement&) = delete;

  static constexpr size_t kLeast = 1 << 15;

  /// While one lives, this thread's large allocations are watched and placed. Wrap a backward pass in it.
  class Use {
   public:
    explicit Use(Placement& placement);
    ~Use();
    Use(const Use&) = delete;
    Use& operator=(const Use&) = delete;
  };

  /// The backward pass has made the gradient of a slot: learns where it came from. True when it lies in its home
  /// already.
  bool settle(size_t slot, const torch::Tensor& gradient);
  /// True when a tensor that is alive, and not the slot's gradient, was put into the slot's home by a wrong guess: the
  /// home must not be written to.
  bool occupied(size_t slot) const;
  /// The next backward pass is another one than those before: learns anew.
  void forget() { plan_.clear(); }
  /// Makes no more guesses.
  void give_up();

 private:
  friend struct PlacingAllocator;
  struct Home;
  struct Birth {
    const void* data;
    size_t number;
  };
  void* take(size_t bytes);
  void born(const void* data);

  std::vector<std::unique_ptr<Home>> homes_;  // by slot; null for small ones
  std::map<size_t, size_t> plan_;             // number of an allocation within a pass → slot
  std::vector<Birth> births_;                 // of this pass
  size_t number_ = 0;                         // allocations in this pass
  bool active_ = true;
};

}  // namespace trireme
