#include <array>
#include <bit>

#include <trireme/base/error.h>
#include <trireme/base/marks.h>
#include <trireme/exchange/transaction.h>

namespace trireme::exchange {

/// `word` is twice the number of steps that were decided, and one more when the crew was given up.
struct alignas(64) Transaction::Page {
  std::atomic<uint64_t> word;
  std::atomic<uint64_t> spoiled;
  std::array<std::atomic<uint64_t>, 13> decided[2];  // by the number of steps. All ranks write the same

  void write(uint64_t steps, const Decided& what) {
    const auto bits = [](double value) { return std::bit_cast<uint64_t>(value); };
    const uint64_t words[] = {static_cast<uint64_t>(what.reached.steps),
                              static_cast<uint64_t>(what.reached.updates),
                              static_cast<uint64_t>(what.reached.position),
                              bits(what.reached.loss),
                              static_cast<uint64_t>(what.reached.stops),
                              static_cast<uint64_t>(what.reached.ledger.epoch),
                              bits(what.reached.ledger.samples),
                              bits(what.reached.ledger.signs),
                              static_cast<uint64_t>(what.reached.ledger.lost),
                              static_cast<uint64_t>(what.reached.ledger.joined),
                              bits(what.lr),
                              bits(what.scale),
                              what.applies};
    for (size_t i = 0; i < decided[0].size(); i++) decided[steps % 2][i].store(words[i], std::memory_order_relaxed);
  }
  Decided read(uint64_t steps) const {
    const auto word = [&](size_t i) { return decided[steps % 2][i].load(std::memory_order_relaxed); };
    const auto count = [&](size_t i) { return static_cast<int64_t>(word(i)); };
    const auto number = [&](size_t i) { return std::bit_cast<double>(word(i)); };
    const Ledger ledger{count(5), number(6), number(7), count(8), count(9)};
    return {{count(0), count(1), count(2), number(3), count(4), ledger}, number(10), number(11), word(12) != 0};
  }
};

namespace {

constexpr uint64_t kGivenUp = 1;

}  // namespace

size_t Transaction::page_bytes() { return sizeof(Page); }

Transaction::Transaction(std::byte* page, const comm::shm::SharedBlock& journals, size_t slots, int rank)
    : page_(reinterpret_cast<Page*>(page)), rank_(rank) {
  for (std::byte* memory : journals.parts) journals_.emplace_back(memory, slots);
  own().look([page = page_] {
    if ((page->word.load() & kGivenUp) != 0)
      throw PeerLost("the crew has changed while this rank made an update: the others go on without it");
  });
}

void Transaction::begin_at(const Reached& reached) { page_->write(0, {.reached = reached}); }

void Transaction::decide(uint64_t step, const Decided& what) {
  page_->write(step, what);
  mark("step: to be decided", step);
  uint64_t before = 2 * (step - 1);
  if (!page_->word.compare_exchange_strong(before, 2 * step) && before != 2 * step)
    throw PeerLost("the crew has changed before a step was complete: it is made anew");
  mark("step: decided", step);
}

void Transaction::spoil() { page_->spoiled.store(1); }

void Transaction::kept(const Reached& reached) {
  page_->write(page_->word.load() / 2, {.reached = reached});
  page_->spoiled.store(0);
}

uint64_t Transaction::give_up() { return page_->word.fetch_or(kGivenUp) / 2; }

Decided Transaction::last() const { return page_->read(page_->word.load() / 2); }

bool Transaction::spoiled() const { return page_->spoiled.load() != 0; }

}  // namespace trireme::exchange
