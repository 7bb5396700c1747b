#include <algorithm>
#include <cstring>

#include <trireme/comm/network/collectives.h>
#include <trireme/comm/network/divide.h>
#include <trireme/space/kernels.h>

namespace trireme::comm::network {

Allreduce::Allreduce(Wire& wire, const Fingerprint& what, std::byte* data, const Along& along)
    : Operation(wire, what),
      data_(data),
      along_(along),
      packed_(along.packed()),
      cut_(what.bytes() / static_cast<size_t>(wire.size()) + 2 * space::kLine) {}

Operation::Piece Allreduce::enclosed(int /*peer*/) const {
  return inside() ? Piece{data_, what_.bytes()} : Piece{packed_.data(), packed_.size()};
}

void Allreduce::send_first() {
  if (inside()) return;
  if (what_.ring)
    for (int k = 0; k < cut_.segments(); k++) send_right(segment(0, k));
  else
    for (int step = 1; step < size_; step++) send(data_, what_.bytes(), peer(step));
}

void Allreduce::run() {
  merge(along_, packed_);
  if (!what_.ring) return run_direct();
  reduce_ring();
  gather_ring();
}

// ---- direct ----

void Allreduce::run_direct() {
  std::vector<const void*> sources(static_cast<size_t>(size_), data_);
  std::vector<std::unique_ptr<Message>> messages(sources.size());
  if (!inside()) scratch_ = wire_.rooms().take(what_.bytes() * static_cast<size_t>(size_ - 1));
  for (int step = 1; step < size_; step++) {
    const auto from = static_cast<size_t>(peer(step));
    std::byte* const room = inside() ? nullptr : scratch_.data.get() + static_cast<size_t>(step - 1) * what_.bytes();
    if (room != nullptr) messages[from] = receive(room, what_.bytes(), peer(step));
    sources[from] = inside() ? enclosed_by(peer(step)) : room;
  }
  for (int step = 1; step < size_; step++) await(messages[static_cast<size_t>(peer(step))], peer(step));
  drain();  // the result overwrites what was sent
  reduce_all(sources);
}

void Allreduce::reduce_all(const std::vector<const void*>& sources) {
  void* const out = data_;
  space::kernels().reduce(what_.dtype, what_.op, &out, 1, sources.data(), size_, what_.count);
}

// ---- ring ----
// Chunks are counted from this rank's: chunk(-1) is the left neighbour's. In step s a rank adds its own part to
// chunk(-1 - s), which has come from the left, and passes it on. After size - 1 steps chunk(1) is complete here; it and
// the others go around once more.

void Allreduce::reduce_ring() {
  scratch_ = wire_.rooms().take(cut_.room() * static_cast<size_t>(cut_.segments()));
  const auto room = [&](int k) { return scratch_.data.get() + static_cast<size_t>(k) * cut_.room(); };
  std::vector<std::unique_ptr<Message>> incoming(static_cast<size_t>(cut_.segments()));
  const auto expect = [&](int step, int k) {
    incoming[static_cast<size_t>(k)] = receive(room(k), segment(-1 - step, k).size(), left());
  };
  for (int k = 0; k < cut_.segments(); k++) expect(0, k);
  for (int step = 0; step < size_ - 1; step++) {
    const bool last = step == size_ - 2;
    const size_t sent_before = sends_under_way();
    for (int k = 0; k < cut_.segments(); k++) {
      const space::Range piece = segment(-1 - step, k);
      await(incoming[static_cast<size_t>(k)], left());
      reduce_segment(piece, room(k), last);
      send_right(piece);
      if (!last) expect(step + 1, k);
    }
    if (last) final_sends_ = sends_under_way() - sent_before;
  }
}

void Allreduce::reduce_segment(space::Range piece, const std::byte* arrived, bool last) {
  if (piece.empty()) return;
  std::byte* const mine = data_ + piece.begin;
  void* const out = mine;
  const void* const sources[] = {arrived, mine};
  const size_t count = piece.size() / size_of(what_.dtype);
  space::kernels().reduce(what_.dtype, what_.op == Op::mean ? Op::sum : what_.op, &out, 1, sources, 2, count);
  if (last && what_.op == Op::mean) divide(what_.dtype, mine, count, size_);
}

/// In step s chunk(-s) arrives complete from the left and is passed on.
void Allreduce::gather_ring() {
  drain(final_sends_);  // what arrives now overwrites what was sent in the first trip
  std::deque<std::unique_ptr<Message>> incoming;
  for (int step = 0; step < size_ - 1; step++)
    for (int k = 0; k < cut_.segments(); k++) {
      const space::Range piece = segment(-step, k);
      incoming.push_back(receive(data_ + piece.begin, piece.size(), left()));
    }
  for (int step = 0; step < size_ - 1; step++)
    for (int k = 0; k < cut_.segments(); k++) {
      await(incoming.front(), left());
      incoming.pop_front();
      if (step < size_ - 2) send_right(segment(-step, k));
    }
}

}  // namespace trireme::comm::network
