#include <trireme/base/error.h>
#include <trireme/comm/shm/stages.h>

namespace trireme::comm::shm {

Stages::Stages(Rounds& rounds, SharedBlock block, size_t stage_bytes)
    : rounds_(rounds),
      block_(std::move(block)),
      stage_bytes_(stage_bytes),
      known_posted_(block_.parts.size()),
      known_taken_(block_.parts.size()) {}

bool Stages::beyond(int rank, uint32_t chunk, std::atomic<uint32_t> Counters::*counter, Known& known) const {
  uint32_t& least = known[static_cast<size_t>(rank)];
  const auto enough = [&] { return static_cast<int32_t>(least - (chunk + 1)) >= 0; };
  if (!enough()) least = (counters(rank).*counter).load();
  return enough();
}

bool Stages::taken_by_all(uint32_t chunk) {
  for (int r = 0; r < rounds_.ranks(); r++)
    if (!beyond(r, chunk, &Counters::taken, known_taken_)) return false;
  return true;
}

bool Stages::posted_by_all(uint32_t chunk) {
  for (int r = 0; r < rounds_.ranks(); r++)
    if (!beyond(r, chunk, &Counters::posted, known_posted_)) return false;
  return true;
}

void Stages::await_all(uint32_t chunk, std::atomic<uint32_t> Counters::*counter, Known& known, std::string_view name) {
  for (int step = 1; step < rounds_.ranks(); step++) {
    const int peer = (rounds_.rank() + step) % rounds_.ranks();
    if (beyond(peer, chunk, counter, known)) continue;
    rounds_.await(
        peer, [&] { return beyond(peer, chunk, counter, known); },
        [&] { return fmt::format("the next chunk of '{}'", name); });
  }
}

void Stages::post(bool quietly) {
  known_posted_[static_cast<size_t>(rounds_.rank())] = ++posted_;
  counters(rounds_.rank()).posted.store(posted_, std::memory_order_release);
  quietly ? rounds_.ring_later() : rounds_.ring();
}

void Stages::take(bool quietly) {
  known_taken_[static_cast<size_t>(rounds_.rank())] = ++taken_;
  counters(rounds_.rank()).taken.store(taken_, std::memory_order_release);
  quietly ? rounds_.ring_later() : rounds_.ring();
}

void Stages::learn(uint32_t round) {
  for (int r = 0; r < rounds_.ranks(); r++) {
    uint32_t& least = known_posted_[static_cast<size_t>(r)];
    const uint32_t staged = rounds_.staged_by(r, round);
    if (static_cast<int32_t>(staged - least) > 0) least = staged;
  }
}

}  // namespace trireme::comm::shm
