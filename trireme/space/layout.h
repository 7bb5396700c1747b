#pragma once
// Where every parameter lives in the flat space.
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include <trireme/space/dtype.h>
#include <trireme/space/range.h>

namespace trireme::space {

/// A slot that is part `index` of `count` of a logical tensor of shape `whole`, which is cut along `dim` into equal
/// parts.
struct Cut {
  int dim = 0;
  int index = 0, count = 1;
  std::vector<int64_t> whole;
  bool operator==(const Cut&) const = default;
};

/// One parameter. `channels_last` says that the elements of a 4-d tensor are stored in the order N, H, W, C.
struct Slot {
  std::string name;
  DType dtype = DType::f32;
  std::vector<int64_t> shape;
  bool channels_last = false;
  Range range{};             // set by Layout
  std::optional<Cut> cut{};  // of a larger tensor; nothing: it is whole
  bool counted = true;       // in a norm over all parts of a model: of what several ranks have alike, one counts

  size_t elements() const;
  /// "conv1.weight f32[6,1,5,5]"; "fc.weight f32[4,8], part 1 of 2 of [8,8]"
  std::string describe() const;
};

/// Names, shapes, types and offsets of all parameters, in the order in which they were given. Immutable.
class Layout {
 public:
  Layout() = default;
  explicit Layout(std::vector<Slot> slots);

  std::span<const Slot> slots() const { return slots_; }
  const Slot& operator[](size_t index) const { return slots_[index]; }
  size_t size() const { return slots_.size(); }
  /// Bytes of the whole space, padding included.
  size_t bytes() const { return bytes_; }
  size_t elements() const;
  /// Equal for equal layouts, on every machine.
  uint64_t fingerprint() const;
  /// One line per slot: what ranks send each other to find out where they differ.
  std::string describe() const;

 private:
  std::vector<Slot> slots_;
  size_t bytes_ = 0;
};

/// The layout of the logical tensors: the same slots, with nothing cut.
Layout whole_of(const Layout& layout);

/// The first difference between two descriptions, as a sentence; "" when there is none.
std::string first_difference(const std::string& mine, int my_rank, const std::string& theirs, int their_rank);

/// Slots whose gradients travel together.
struct Bucket {
  size_t first = 0, last = 0;  // slots [first, last)
  Range range{};
  DType dtype = DType::f32;
  std::string name;  // of its slots, for messages
};

/// Cuts the layout into buckets of about `bytes`, in the order in which a backward pass fills them: last slot first.
/// A bucket holds one element type, and is never empty.
std::vector<Bucket> plan_buckets(const Layout& layout, size_t bytes);

/// FNV-1a: a stable 64-bit hash of a text.
uint64_t hash_text(std::string_view text);

}  // namespace trireme::space
