#pragma once
// The algorithms, one class per collective.
//
// Vocabulary. A *block* is what one rank contributes to or gets from a collective. In a ring the data is cut into a
// *chunk* per rank, and each chunk into *segments*, so that a segment is reduced or passed on while the next one
// arrives. Whatever fits into the opening travels in it.
#include <vector>

#include <trireme/comm/network/operation.h>
#include <trireme/space/range.h>

namespace trireme::comm::network {

constexpr size_t kSegment =
    256 << 10;  // bytes at most: large enough for the wire, small enough for the second-level cache

/// Cuts blocks or chunks of nearly equal size into the same number of segments each.
class Cut {
 public:
  /// `largest` is that of the blocks, in bytes.
  explicit Cut(size_t largest)
      : segments_(std::max<size_t>(1, (largest + kSegment - 1) / kSegment)),
        room_(round_up(largest / segments_ + 2 * space::kLine, space::kLine)) {}
  int segments() const { return static_cast<int>(segments_); }
  space::Range segment(space::Range whole, int k) const { return space::part_of(whole, k, segments()); }
  /// Bytes, in whole lines, that hold any segment.
  size_t room() const { return room_; }

 private:
  size_t segments_, room_;
};

class Barrier final : public Operation {
 public:
  using Operation::Operation;

 protected:
  void run() override {}  // the openings were it
};

/// Direct: everybody sends everything to everybody and reduces in the order of ranks; one trip. Ring: two trips around,
/// each rank sends twice its data.
class Allreduce final : public Operation {
 public:
  Allreduce(Wire& wire, const Fingerprint& what, std::byte* data, const Along& along = {});
  ~Allreduce() override { wire_.rooms().put_back(std::move(scratch_)); }

 protected:
  Piece enclosed(int peer) const override;
  void send_first() override;
  void run() override;

 private:
  bool inside() const { return !what_.ring && along_.empty() && what_.bytes() <= Packet::kRoom; }
  void merge_along();
  space::Range chunk(int step) const { return space::part_of({0, what_.bytes()}, peer(step), size_); }
  space::Range segment(int step, int k) const { return cut_.segment(chunk(step), k); }
  void send_right(space::Range piece) { send(data_ + piece.begin, piece.size(), right()); }
  void run_direct();
  void reduce_all(const std::vector<const void*>& sources);
  void reduce_ring();
  void reduce_segment(space::Range piece, const std::byte* arrived, bool last);
  void gather_ring();

  std::byte* data_;
  Along along_;
  std::vector<std::byte> packed_;  // of along_: the sums, then the flags
  Cut cut_;
  Rooms::Room scratch_;
  size_t final_sends_ = 0;  // segments of the chunk that this rank has completed
};

/// Each rank sends every other one its block, and reduces its own block in the order of ranks.
class ReduceScatter final : public Operation {
 public:
  ReduceScatter(Wire& wire, const Fingerprint& what, const std::byte* input, std::byte* output);

 protected:
  Piece enclosed(int peer) const override;
  bool individual() const override { return true; }
  void send_first() override;
  void run() override;

 private:
  bool inside() const { return what_.bytes() <= Packet::kRoom; }
  const std::byte* block(int peer) const { return input_ + static_cast<size_t>(peer) * what_.bytes(); }
  void reduce(space::Range piece, std::vector<const void*>& sources);

  const std::byte* input_;
  std::byte* output_;
  Cut cut_;
};

class AllGather final : public Operation {
 public:
  AllGather(Wire& wire, const Fingerprint& what, const std::byte* input, std::byte* output);

 protected:
  Piece enclosed(int peer) const override;
  void send_first() override;
  void run() override;

 private:
  bool inside() const { return !what_.ring && what_.bytes() <= Packet::kRoom; }
  std::byte* block(int peer) const { return output_ + static_cast<size_t>(peer) * what_.bytes(); }
  void run_ring();

  const std::byte* input_;
  std::byte* output_;
  Cut cut_;
};

/// Direct: the root sends to everybody. Ring: segments pass from rank to rank, beginning at the root.
class Broadcast final : public Operation {
 public:
  Broadcast(Wire& wire, const Fingerprint& what, std::byte* data);

 protected:
  Piece enclosed(int peer) const override;
  void send_first() override;
  void run() override;

 private:
  bool inside() const { return !what_.ring && what_.bytes() <= Packet::kRoom; }

  std::byte* data_;
  Cut cut_;
};

class AllToAll final : public Operation {
 public:
  AllToAll(Wire& wire, const Fingerprint& what, const std::byte* input, std::byte* output);

 protected:
  Piece enclosed(int peer) const override;
  bool individual() const override { return true; }
  void send_first() override;
  void run() override;

 private:
  bool inside() const { return what_.bytes() <= Packet::kRoom; }

  const std::byte* input_;
  std::byte* output_;
};

}  // namespace trireme::comm::network
