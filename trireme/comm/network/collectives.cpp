#include <algorithm>
#include <cstring>

#include <trireme/comm/network/collectives.h>
#include <trireme/space/kernels.h>

namespace trireme::comm::network {
namespace {

/// Null pointers are fine when there is nothing to copy, and so is a block that is where it belongs already.
void copy_bytes(std::byte* to, const std::byte* from, size_t bytes) {
  if (bytes > 0 && to != from) std::memcpy(to, from, bytes);
}

}  // namespace

// ---- blocks ----

BlockOperation::BlockOperation(Wire& wire, const Fingerprint& what, Blocks blocks, const Blocks& agreed)
    : Operation(wire, what), blocks_(std::move(blocks)), cut_(blocks_.largest()) {
  if (agreed.even()) return;
  shown_ = agreed.list();
  shown_.resize(kMostShown);
}

Operation::Piece BlockOperation::enclosed_counts() const {
  return {reinterpret_cast<const std::byte*>(shown_.data()), shown_.size() * sizeof(uint64_t)};
}

std::string BlockOperation::conflict(int peer) const {
  std::vector<uint64_t> theirs(kMostShown);
  std::memcpy(theirs.data(), enclosed_by(peer), kMostShown * sizeof(uint64_t));
  return difference(wire_.name_of(me_), shown_, wire_.name_of(peer), theirs);
}

// ---- reduce-scatter ----

ReduceScatter::ReduceScatter(Wire& wire, const Fingerprint& what, Blocks blocks, const Blocks& agreed,
                             const std::byte* input, std::byte* output, const Along& along)
    : BlockOperation(wire, what, std::move(blocks), agreed),
      input_(input),
      output_(output),
      along_(along),
      packed_(along.packed()) {}

Operation::Piece ReduceScatter::enclosed(int peer) const {
  if (!along_.empty()) return {packed_.data(), packed_.size()};
  return inside() ? Piece{input_ + block(peer).begin, block(peer).size()} : enclosed_counts();
}

void ReduceScatter::send_first() {
  if (inside()) return;
  for (int k = 0; k < cut_.segments(); k++)
    for (int step = 1; step < size_; step++) {
      const space::Range piece = segment(peer(step), k);
      send(input_ + piece.begin, piece.size(), peer(step));
    }
}

void ReduceScatter::run() {
  merge(along_, packed_);
  std::vector<const void*> sources(static_cast<size_t>(size_));
  if (inside()) {
    for (int step = 1; step < size_; step++) sources[static_cast<size_t>(peer(step))] = enclosed_by(peer(step));
    return reduce(block(me_), sources);
  }
  // Two sets of rooms: one is reduced while the other fills.
  const size_t ranks = static_cast<size_t>(size_);
  scratch_ = wire_.rooms().take(2 * ranks * cut_.room());
  std::vector<std::unique_ptr<Message>> incoming(2 * ranks);
  const auto slot = [&](int k, int from) { return static_cast<size_t>(k % 2) * ranks + static_cast<size_t>(from); };
  const auto room = [&](int k, int from) { return scratch_.data.get() + slot(k, from) * cut_.room(); };
  const auto expect = [&](int k) {
    if (k >= cut_.segments()) return;
    const size_t bytes = segment(me_, k).size();
    for (int step = 1; step < size_; step++)
      incoming[slot(k, peer(step))] = receive(room(k, peer(step)), bytes, peer(step));
  };
  expect(0);
  for (int k = 0; k < cut_.segments(); k++) {
    expect(k + 1);
    for (int step = 1; step < size_; step++) {
      await(incoming[slot(k, peer(step))], peer(step));
      sources[static_cast<size_t>(peer(step))] = room(k, peer(step));
    }
    reduce(segment(me_, k), sources);
  }
}

/// `sources` are the others' parts; this rank's is in its input.
void ReduceScatter::reduce(space::Range piece, std::vector<const void*>& sources) {
  if (piece.empty()) return;
  sources[static_cast<size_t>(me_)] = input_ + piece.begin;
  void* const out = output_ + (piece.begin - block(me_).begin);
  space::kernels().reduce(what_.dtype, what_.op, &out, 1, sources.data(), size_, piece.size() / size_of(what_.dtype));
}

// ---- all-gather ----

AllGather::AllGather(Wire& wire, const Fingerprint& what, Blocks blocks, const Blocks& agreed, const std::byte* input,
                     std::byte* output)
    : BlockOperation(wire, what, std::move(blocks), agreed), input_(input), output_(output) {}

Operation::Piece AllGather::enclosed(int /*peer*/) const {
  return inside() ? Piece{input_, block(me_).size()} : enclosed_counts();
}

void AllGather::send_first() {
  if (inside()) return;
  if (!what_.ring) {
    for (int step = 1; step < size_; step++) send(input_, block(me_).size(), peer(step));
    return;
  }
  for (int k = 0; k < cut_.segments(); k++) {
    const space::Range piece = cut_.segment({0, block(me_).size()}, k);
    send(input_ + piece.begin, piece.size(), right());
  }
}

void AllGather::run() {
  copy_bytes(output_ + block(me_).begin, input_, block(me_).size());
  if (what_.ring) return run_ring();
  std::vector<std::unique_ptr<Message>> incoming(static_cast<size_t>(size_));
  for (int step = 1; step < size_; step++) {
    const int from = peer(step);
    if (inside())
      copy_bytes(output_ + block(from).begin, enclosed_by(from), block(from).size());
    else
      incoming[static_cast<size_t>(from)] = receive(output_ + block(from).begin, block(from).size(), from);
  }
  for (int step = 1; step < size_; step++) await(incoming[static_cast<size_t>(peer(step))], peer(step));
}

/// In step s the block of the rank s places to the left of the left neighbour arrives, and is passed on unless the
/// right neighbour made it.
void AllGather::run_ring() {
  const auto part = [&](int step, int k) { return segment(peer(-1 - step), k); };
  std::deque<std::unique_ptr<Message>> incoming;
  for (int step = 0; step < size_ - 1; step++)
    for (int k = 0; k < cut_.segments(); k++)
      incoming.push_back(receive(output_ + part(step, k).begin, part(step, k).size(), left()));
  for (int step = 0; step < size_ - 1; step++)
    for (int k = 0; k < cut_.segments(); k++) {
      await(incoming.front(), left());
      incoming.pop_front();
      if (step < size_ - 2) send(output_ + part(step, k).begin, part(step, k).size(), right());
    }
}

// ---- broadcast ----

Broadcast::Broadcast(Wire& wire, const Fingerprint& what, std::byte* data)
    : Operation(wire, what), data_(data), cut_(what.bytes()) {}

Operation::Piece Broadcast::enclosed(int /*peer*/) const {
  return inside() && me_ == what_.root ? Piece{data_, what_.bytes()} : Piece{};
}

void Broadcast::send_first() {
  if (inside() || me_ != what_.root) return;
  for (int k = 0; k < cut_.segments(); k++) {
    const space::Range piece = cut_.segment({0, what_.bytes()}, k);
    for (int step = 1; step < (what_.ring ? 2 : size_); step++) send(data_ + piece.begin, piece.size(), peer(step));
  }
}

void Broadcast::run() {
  if (me_ == what_.root) return;
  if (inside()) return copy_bytes(data_, enclosed_by(what_.root), what_.bytes());
  const int from = what_.ring ? left() : what_.root;
  const bool pass_on = what_.ring && right() != what_.root;
  std::vector<std::unique_ptr<Message>> incoming;
  for (int k = 0; k < cut_.segments(); k++) {
    const space::Range piece = cut_.segment({0, what_.bytes()}, k);
    incoming.push_back(receive(data_ + piece.begin, piece.size(), from));
  }
  for (int k = 0; k < cut_.segments(); k++) {
    await(incoming[static_cast<size_t>(k)], from);
    const space::Range piece = cut_.segment({0, what_.bytes()}, k);
    if (pass_on) send(data_ + piece.begin, piece.size(), right());
  }
}

// ---- all-to-all ----

AllToAll::AllToAll(Wire& wire, const Fingerprint& what, Blocks sends, Blocks receives, const std::byte* input,
                   std::byte* output)
    : Operation(wire, what), sends_(std::move(sends)), receives_(std::move(receives)), input_(input), output_(output) {
  if (!lists()) return;
  const std::vector<uint64_t> sent = sends_.list(), expected = receives_.list();
  for (size_t r = 0; r < sent.size(); r++) pairs_.insert(pairs_.end(), {sent[r], expected[r]});
}

Operation::Piece AllToAll::enclosed(int peer) const {
  if (lists())
    return {reinterpret_cast<const std::byte*>(&pairs_[2 * static_cast<size_t>(peer)]), 2 * sizeof(uint64_t)};
  return inside() ? Piece{input_ + sends_.of(peer).begin, sends_.of(peer).size()} : Piece{};
}

std::string AllToAll::conflict(int peer) const {
  uint64_t theirs[2];
  std::memcpy(theirs, enclosed_by(peer), sizeof theirs);
  const uint64_t* const ours = &pairs_[2 * static_cast<size_t>(peer)];
  const int me = wire_.name_of(me_), other = wire_.name_of(peer);
  if (ours[0] != theirs[1]) return sends_and_expects(me, ours[0], other, theirs[1]);
  return ours[1] != theirs[0] ? sends_and_expects(other, theirs[0], me, ours[1]) : "";
}

void AllToAll::send_first() {
  if (inside()) return;
  for (int step = 1; step < size_; step++) {
    const space::Range block = sends_.of(peer(step));
    send(input_ + block.begin, block.size(), peer(step));
  }
}

void AllToAll::run() {
  const auto place = [&](int from) { return output_ + receives_.of(from).begin; };
  copy_bytes(place(me_), input_ + sends_.of(me_).begin, receives_.of(me_).size());
  std::vector<std::unique_ptr<Message>> incoming(static_cast<size_t>(size_));
  for (int step = 1; step < size_; step++) {
    const int from = peer(-step);
    if (inside())
      copy_bytes(place(from), enclosed_by(from), receives_.of(from).size());
    else
      incoming[static_cast<size_t>(from)] = receive(place(from), receives_.of(from).size(), from);
  }
  for (int step = 1; step < size_; step++) await(incoming[static_cast<size_t>(peer(step))], peer(step));
}

}  // namespace trireme::comm::network
