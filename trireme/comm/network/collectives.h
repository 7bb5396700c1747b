#pragma once
// The algorithms, one class per collective.
//
// Vocabulary. A *block* is what one rank contributes to or gets from a collective. In a ring the data is cut into a
// *chunk* per rank, and each chunk into *segments*, so that a segment is reduced or passed on while the next one
// arrives. Whatever fits into the opening travels in it.
#include <vector>

#include <trireme/comm/counts.h>
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
  std::vector<std::byte> packed_;  // of along_
  Cut cut_;
  Rooms::Room scratch_;
  size_t final_sends_ = 0;  // segments of the chunk that this rank has completed
};

/// One that has a block of a vector for each rank. Where what the caller agreed on with the others is a list of counts,
/// the openings carry it, and no data.
class BlockOperation : public Operation {
 public:
  /// `agreed`: of this group, or of a larger one of whose blocks these are slices.
  BlockOperation(Wire& wire, const Fingerprint& what, Blocks blocks, const Blocks& agreed);
  size_t bytes() const override { return blocks_.bytes(); }

 protected:
  bool small() const { return blocks_.even() && shown_.empty() && blocks_.largest() <= Packet::kRoom; }
  Piece enclosed_counts() const;
  std::string conflict(int peer) const override;
  space::Range block(int rank) const { return blocks_.of(rank); }
  space::Range segment(int rank, int k) const { return cut_.segment(block(rank), k); }

  const Blocks blocks_;
  const Cut cut_;

 private:
  static constexpr size_t kMostShown = Packet::kRoom / sizeof(uint64_t);
  std::vector<uint64_t> shown_;  // the counts, as many as an opening has room for
};

/// Each rank sends every other one its block, and reduces its own block in the order of ranks: a rank sends and
/// receives each byte once.
class ReduceScatter final : public BlockOperation {
 public:
  ReduceScatter(Wire& wire, const Fingerprint& what, Blocks blocks, const Blocks& agreed, const std::byte* input,
                std::byte* output, const Along& along = {});
  ~ReduceScatter() override { wire_.rooms().put_back(std::move(scratch_)); }

 protected:
  Piece enclosed(int peer) const override;
  bool individual() const override { return inside(); }
  std::string conflict(int peer) const override { return along_.empty() ? BlockOperation::conflict(peer) : ""; }
  void send_first() override;
  void run() override;

 private:
  bool inside() const { return small() && along_.empty(); }
  void reduce(space::Range piece, std::vector<const void*>& sources);

  const std::byte* input_;
  std::byte* output_;
  Along along_;
  std::vector<std::byte> packed_;  // of along_
  Rooms::Room scratch_;
};

class AllGather final : public BlockOperation {
 public:
  AllGather(Wire& wire, const Fingerprint& what, Blocks blocks, const Blocks& agreed, const std::byte* input,
            std::byte* output);

 protected:
  Piece enclosed(int peer) const override;
  void send_first() override;
  void run() override;

 private:
  bool inside() const { return !what_.ring && small(); }
  void run_ring();

  const std::byte* input_;
  std::byte* output_;
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

/// With lists, each opening says what its sender sends to the peer and what it expects from it.
class AllToAll final : public Operation {
 public:
  AllToAll(Wire& wire, const Fingerprint& what, Blocks sends, Blocks receives, const std::byte* input,
           std::byte* output);

 protected:
  Piece enclosed(int peer) const override;
  bool individual() const override { return true; }
  std::string conflict(int peer) const override;
  void send_first() override;
  void run() override;

 private:
  bool lists() const { return what_.counts == kOwnCounts; }
  bool inside() const { return !lists() && sends_.largest() <= Packet::kRoom; }

  const Blocks sends_, receives_;
  std::vector<uint64_t> pairs_;  // for each rank: what is sent to it, what is expected from it
  const std::byte* input_;
  std::byte* output_;
};

}  // namespace trireme::comm::network
