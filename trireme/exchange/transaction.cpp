#include <array>
#include <bit>
#include <cinttypes>
#include <cmath>
#include <cstdio>
#include <cstdlib>

#include <trireme/base/error.h>
#include <trireme/base/marks.h>
#include <trireme/exchange/transaction.h>

namespace trireme::exchange {

Ledger Ledger::in(int64_t its_epoch) const {
  return its_epoch == epoch ? *this : Ledger{.epoch = its_epoch, .lost = lost, .joined = joined};
}

void Ledger::add(double its_samples, double its_signs, bool applies) {
  (applies ? samples : left_out) += its_samples;
  signs = std::fmod(signs + its_signs, kSigns);
}

std::string Ledger::text() const {
  return fmt::format("epoch {} samples {:.0f} signs {:.0f} left out {:.0f} lost {} joined {}", epoch, samples, signs,
                     left_out, lost, joined);
}

Ledger Ledger::parse(const std::string& text) {
  Ledger ledger;
  std::array<char, 32> samples{}, signs{}, left_out{};
  if (std::sscanf(text.c_str(),
                  "epoch %" SCNd64 " samples %31s signs %31s left out %31s lost %" SCNd64 " joined %" SCNd64,
                  &ledger.epoch, samples.data(), signs.data(), left_out.data(), &ledger.lost, &ledger.joined) != 6)
    fail<Corruption>("the checkpoint's ledger of samples cannot be read: '{}'", text);
  ledger.samples = std::strtod(samples.data(), nullptr);
  ledger.signs = std::strtod(signs.data(), nullptr);
  ledger.left_out = std::strtod(left_out.data(), nullptr);
  return ledger;
}

/// `word` is twice the number of steps that were decided, and one more when the crew was given up.
struct alignas(64) Transaction::Page {
  std::atomic<uint64_t> word;
  std::atomic<uint64_t> spoiled;
  std::array<std::atomic<uint64_t>, 14> decided[2];  // by the number of steps. All ranks write the same

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
                              bits(what.reached.ledger.left_out),
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
    const Ledger ledger{count(5), number(6), number(7), number(8), count(9), count(10)};
    return {{count(0), count(1), count(2), number(3), count(4), ledger}, number(11), number(12), word(13) != 0};
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
