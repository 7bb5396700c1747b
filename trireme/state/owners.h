#pragma once
// Who holds which range of which vector, and how to get from one division to another.
//
// All that a job knows is a few named flat vectors: the parameters, each state vector of the optimizer, buffers. An
// *owner map* says which owner (a rank, a server, a file: a number either way) holds which range of which vector. A
// range may have several owners, who hold copies of the same bytes; bytes between slots need no owner. Writing a
// checkpoint, loading it on another number of ranks, a machine that joins, a server that takes over: each is a step
// from one owner map to another, and plan_moves() is the whole of it.
#include <map>
#include <span>
#include <string>
#include <vector>

#include <trireme/space/range.h>

namespace trireme::state {

/// A part of a vector, and who has it.
struct Holding {
  space::Range range;
  int owner = 0;
  bool operator==(const Holding&) const = default;
};

/// A value. Holdings of one owner in one vector do not overlap.
class OwnerMap {
 public:
  /// Empty ranges are ignored; neighbours with the same owner become one. Throws InvalidArgument when the owner has a
  /// part of the range already.
  void add(const std::string& vector, space::Range range, int owner);

  /// By begin, then by owner; empty when nobody holds any of it.
  std::span<const Holding> of(const std::string& vector) const;
  std::vector<std::string> vectors() const;
  /// The parts of `range` that the owner does not hold, in their order.
  std::vector<space::Range> lacking(const std::string& vector, space::Range range, int owner) const;
  bool operator==(const OwnerMap&) const = default;

 private:
  /// Of one vector. A cut tensor has a holding for each of its rows: nothing here looks at all of them.
  struct Held {
    std::vector<Holding> list;                     // by begin, then by owner
    std::map<int, std::map<size_t, size_t>> ends;  // by owner and begin
    bool operator==(const Held&) const = default;
    std::vector<Holding>::iterator place(const Holding& holding);
  };
  std::map<std::string, Held> holdings_;
};

/// Bytes that one owner passes to another.
struct Move {
  std::string vector;
  space::Range range;
  int from = 0, to = 0;
  bool operator==(const Move&) const = default;
};

/// What has to move so that everybody holds what `to` gives them. Each byte that an owner of `to` does not hold in
/// `from` comes to it exactly once; what it holds already stays. Where several could send, the work is divided so that
/// the busiest sender has as little as possible to send: first what only one has, then copies, in pieces of whole cache
/// lines. Pure: every rank finds the same plan. Ordered by vector, then by place. Throws InvalidArgument that names the
/// first bytes which nobody holds in `from`.
std::vector<Move> plan_moves(const OwnerMap& from, const OwnerMap& to);

}  // namespace trireme::state
