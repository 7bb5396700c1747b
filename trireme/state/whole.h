#pragma once
// A rank's flat space, and that of the whole model, of whose tensors the rank has parts (space::Slot::cut).
//
// State is of the whole, whoever holds it: checkpoints, images and owner maps speak of ranges of the logical tensors. A
// rank's memory has its parts of them, one behind another. A part that is cut along the first dim is one stretch of its
// tensor; along another one it is a row here and a row there:
//   whole  [ a0 a1 b0 b1 | c0 c1 d0 d1 ]        a tensor of 2 × 4, of which part 1 of 2 along dim 1
//   here   [ b0 b1 | d0 d1 ]                    is a slot of 2 × 2: two pieces
// Pieces have the same order in both. A rank that has a stage of the model has some of the tensors only. Buffers and
// whatever has no slots are the same in both.
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include <trireme/space/layout.h>
#include <trireme/state/visitor.h>

namespace trireme::state {

/// Immutable, thread-safe.
class Whole {
 public:
  /// Of a rank that has something of every tensor.
  explicit Whole(space::Layout here);
  /// Of one that has something of some of them: `here` names slots of `whole`, in the same order.
  Whole(space::Layout here, space::Layout whole);

  const space::Layout& here() const { return here_; }
  /// Of the logical tensors.
  const space::Layout& layout() const { return whole_; }

  /// The same bytes in both spaces, so many in a row.
  struct Piece {
    space::Range whole{}, here{};
  };
  using Visit = std::function<void(const Piece&)>;
  /// A range of this rank's vector; padding between slots is passed over.
  void each(const std::string& vector, space::Range here, const Visit& visit) const;
  /// What of a range of the whole vector is here.
  void each_here(const std::string& vector, space::Range whole, const Visit& visit) const;

  /// Holdings of this rank's space as those of the whole, with the same owners.
  OwnerMap whole_of(const OwnerMap& here) const;
  /// What `owner` holds of the whole, as ranges of this rank's space, whose `new_owner` is to have them. What is not
  /// here is passed over.
  OwnerMap here_of(const OwnerMap& whole, int owner, int new_owner) const;
  /// The layout's description in the other space, line by line as far as it is the one of this; lines of slots that
  /// are not here are left out, and put back.
  About whole_of(About here) const;
  About here_of(About whole) const;

 private:
  /// How a slot lies in its tensor: runs of `run` bytes, of which one begins every `stride` bytes from `first` on.
  struct Lie {
    space::Range whole{}, here{};
    size_t run = 0, stride = 0, first = 0;
  };
  static Lie lie_of(const space::Slot& slot, space::Range whole);
  static void each_of(const Lie& lie, space::Range here, const Visit& visit);
  static void each_here_of(const Lie& lie, space::Range whole, const Visit& visit);

  const std::vector<Lie>& lies_of(const std::string& vector) const;

  space::Layout here_, whole_;
  std::vector<size_t> slots_;      // by slot here: which one of the whole it is
  std::vector<Lie> lies_, steps_;  // by slot here: in vectors with its elements, and in that of its steps
};

/// Shows a rank's part as one of the whole. Both outlive it.
class WholeVisitor final : public Visitor {
 public:
  WholeVisitor(const Whole& whole, Visitor& to) : whole_(whole), to_(to) {}
  void about(const About& about) override { to_.about(whole_.whole_of(about)); }
  void part(const std::string& vector, space::Range range, std::span<const std::byte> bytes) override;
  void scalar(const std::string& name, int64_t value) override { to_.scalar(name, value); }
  void row(const std::string& table, const Row& row) override { to_.row(table, row); }

 private:
  const Whole& whole_;
  Visitor& to_;
};

/// What a rank needs of state of the whole, as ranges of its own space. Both outlive it.
class PartSource final : public Source {
 public:
  PartSource(const Whole& whole, Source& from);
  const About& about() const override { return about_; }
  const OwnerMap& contents() const override { return contents_; }
  std::optional<int64_t> scalar(const std::string& name) const override { return from_.scalar(name); }
  bool has_extras() const override { return from_.has_extras(); }
  void read(const std::string& vector, space::Range range, std::span<std::byte> into) override;
  void rows(const std::string& table, const std::function<void(const Row&)>& take) override { from_.rows(table, take); }

 private:
  const Whole& whole_;
  Source& from_;
  About about_;
  OwnerMap contents_;
};

}  // namespace trireme::state
