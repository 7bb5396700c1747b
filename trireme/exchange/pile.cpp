#include <algorithm>
#include <atomic>

#include <trireme/exchange/pile.h>

namespace trireme::exchange {

struct Pile::Shared {
  static constexpr int64_t kPieces = int64_t{1} << 40;  // more than a course has
  std::atomic<int64_t> next;                            // number of the course · kPieces + piece
  std::atomic<uint32_t> stopped;
};

Pile::Pile(Berth& berth, int rank, int ranks)
    : WorkSource(rank, ranks), block_(berth.one("pile", sizeof(Shared), "the pile of work")) {}

Pile::Shared& Pile::shared() const { return *reinterpret_cast<Shared*>(block_); }

bool Pile::stopped() {
  if (stop_wanted_) shared().stopped.store(1);
  return shared().stopped.load() != 0;
}

Pile::Position Pile::position() const {
  const int64_t next = shared().next.load();
  return {.course = next / Shared::kPieces, .piece = next % Shared::kPieces};
}

void Pile::restore_position(const Position& position) {
  shared().next.store(position.course * Shared::kPieces + position.piece);
}

ps::Lease Pile::take() {
  const bool stop = stopped();
  const int64_t first = course_.number * Shared::kPieces;
  for (int64_t seen = shared().next.load();;) {
    const int64_t now = std::max(seen, first), piece = now - first;
    if (piece >= course_.steps * pieces()) return {ps::Lease::end};  // for all alike: they may meet there
    if (stop && piece % pieces() == 0) return {ps::Lease::stopped};  // no step is left in the middle
    if (shared().next.compare_exchange_weak(seen, now + 1))
      return {ps::Lease::piece, course_.first_step + piece / pieces(), piece};
  }
}

}  // namespace trireme::exchange
