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

// ---- reduce-scatter ----

ReduceScatter::ReduceScatter(Wire& wire, const Fingerprint& what, const std::byte* input, std::byte* output)
    : Operation(wire, what), input_(input), output_(output), cut_(what.bytes()) {}

Operation::Piece ReduceScatter::enclosed(int peer) const {
  return inside() ? Piece{block(peer), what_.bytes()} : Piece{};
}

void ReduceScatter::send_first() {
  if (inside()) return;
  for (int k = 0; k < cut_.segments(); k++)
    for (int step = 1; step < size_; step++) {
      const space::Range piece = cut_.segment({0, what_.bytes()}, k);
      send(block(peer(step)) + piece.begin, piece.size(), peer(step));
    }
}

void ReduceScatter::run() {
  std::vector<const void*> sources(static_cast<size_t>(size_));
  if (inside()) {
    for (int step = 1; step < size_; step++) sources[static_cast<size_t>(peer(step))] = enclosed_by(peer(step));
    return reduce({0, what_.bytes()}, sources);
  }
  // Two sets of rooms: one is reduced while the other fills.
  const size_t ranks = static_cast<size_t>(size_);
  std::vector<std::byte> scratch(2 * ranks * cut_.room());
  std::vector<std::unique_ptr<Message>> incoming(2 * ranks);
  const auto slot = [&](int k, int from) { return static_cast<size_t>(k % 2) * ranks + static_cast<size_t>(from); };
  const auto expect = [&](int k) {
    if (k >= cut_.segments()) return;
    const size_t bytes = cut_.segment({0, what_.bytes()}, k).size();
    for (int step = 1; step < size_; step++)
      incoming[slot(k, peer(step))] = receive(scratch.data() + slot(k, peer(step)) * cut_.room(), bytes, peer(step));
  };
  expect(0);
  for (int k = 0; k < cut_.segments(); k++) {
    expect(k + 1);
    for (int step = 1; step < size_; step++) {
      await(incoming[slot(k, peer(step))], peer(step));
      sources[static_cast<size_t>(peer(step))] = scratch.data() + slot(k, peer(step)) * cut_.room();
    }
    reduce(cut_.segment({0, what_.bytes()}, k), sources);
  }
}

/// `sources` are the others' parts; this rank's is in its input.
void ReduceScatter::reduce(space::Range piece, std::vector<const void*>& sources) {
  sources[static_cast<size_t>(me_)] = block(me_) + piece.begin;
  void* const out = output_ + piece.begin;
  space::kernels().reduce(what_.dtype, what_.op, &out, 1, sources.data(), size_, piece.size() / size_of(what_.dtype));
}

// ---- all-gather ----

AllGather::AllGather(Wire& wire, const Fingerprint& what, const std::byte* input, std::byte* output)
    : Operation(wire, what), input_(input), output_(output), cut_(what.bytes()) {}

Operation::Piece AllGather::enclosed(int /*peer*/) const { return inside() ? Piece{input_, what_.bytes()} : Piece{}; }

void AllGather::send_first() {
  if (inside()) return;
  if (!what_.ring) {
    for (int step = 1; step < size_; step++) send(input_, what_.bytes(), peer(step));
    return;
  }
  for (int k = 0; k < cut_.segments(); k++) {
    const space::Range piece = cut_.segment({0, what_.bytes()}, k);
    send(input_ + piece.begin, piece.size(), right());
  }
}

void AllGather::run() {
  copy_bytes(block(me_), input_, what_.bytes());
  if (what_.ring) return run_ring();
  std::vector<std::unique_ptr<Message>> incoming(static_cast<size_t>(size_));
  for (int step = 1; step < size_; step++) {
    const int from = peer(step);
    if (inside())
      copy_bytes(block(from), enclosed_by(from), what_.bytes());
    else
      incoming[static_cast<size_t>(from)] = receive(block(from), what_.bytes(), from);
  }
  for (int step = 1; step < size_; step++) await(incoming[static_cast<size_t>(peer(step))], peer(step));
}

/// In step s the block of the rank s places to the left of the left neighbour arrives, and is passed on unless the
/// right neighbour made it.
void AllGather::run_ring() {
  const auto segment = [&](int step, int k) {
    const size_t begin = static_cast<size_t>(peer(-1 - step)) * what_.bytes();
    return cut_.segment({begin, begin + what_.bytes()}, k);
  };
  std::deque<std::unique_ptr<Message>> incoming;
  for (int step = 0; step < size_ - 1; step++)
    for (int k = 0; k < cut_.segments(); k++)
      incoming.push_back(receive(output_ + segment(step, k).begin, segment(step, k).size(), left()));
  for (int step = 0; step < size_ - 1; step++)
    for (int k = 0; k < cut_.segments(); k++) {
      await(incoming.front(), left());
      incoming.pop_front();
      if (step < size_ - 2) send(output_ + segment(step, k).begin, segment(step, k).size(), right());
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

AllToAll::AllToAll(Wire& wire, const Fingerprint& what, const std::byte* input, std::byte* output)
    : Operation(wire, what), input_(input), output_(output) {}

Operation::Piece AllToAll::enclosed(int peer) const {
  return inside() ? Piece{input_ + static_cast<size_t>(peer) * what_.bytes(), what_.bytes()} : Piece{};
}

void AllToAll::send_first() {
  if (inside()) return;
  for (int step = 1; step < size_; step++)
    send(input_ + static_cast<size_t>(peer(step)) * what_.bytes(), what_.bytes(), peer(step));
}

void AllToAll::run() {
  const size_t bytes = what_.bytes();
  const auto block = [&](int from) { return static_cast<size_t>(from) * bytes; };
  copy_bytes(output_ + block(me_), input_ + block(me_), bytes);
  std::vector<std::unique_ptr<Message>> incoming(static_cast<size_t>(size_));
  for (int step = 1; step < size_; step++) {
    const int from = peer(-step);
    if (inside())
      copy_bytes(output_ + block(from), enclosed_by(from), bytes);
    else
      incoming[static_cast<size_t>(from)] = receive(output_ + block(from), bytes, from);
  }
  for (int step = 1; step < size_; step++) await(incoming[static_cast<size_t>(peer(step))], peer(step));
}

}  // namespace trireme::comm::network
