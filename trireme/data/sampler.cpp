#include <algorithm>
#include <limits>
#include <numeric>

#include <trireme/base/error.h>
#include <trireme/data/random.h>
#include <trireme/data/sampler.h>
#include <trireme/exchange/transaction.h>

namespace trireme::data {

namespace {

/// Of the first so many.
size_t sum_of(const std::vector<size_t>& shares, size_t count) {
  return std::accumulate(shares.begin(), shares.begin() + static_cast<ptrdiff_t>(count), size_t{0});
}

}  // namespace

std::vector<uint32_t> epoch_order(size_t count, uint64_t seed, int64_t epoch, bool shuffle) {
  if (count > std::numeric_limits<uint32_t>::max())
    fail<InvalidArgument>("{} samples are more than one set may have here", count);
  std::vector<uint32_t> order(count);
  std::iota(order.begin(), order.end(), 0u);
  if (!shuffle) return order;
  Random random(mix(seed, static_cast<uint64_t>(epoch)));
  for (size_t i = count; i > 1; i--) std::swap(order[i - 1], order[random.below(i)]);
  return order;
}

Piece piece_of(const Cut& cut, size_t step, int rank, int micro) {
  const size_t begin = step * cut.batch, end = std::min(cut.count, begin + cut.batch), samples = end - begin;
  const size_t parts = static_cast<size_t>(cut.ranks), pieces = static_cast<size_t>(cut.accumulate);
  const size_t whole = cut.shares ? sum_of(*cut.shares, parts) : 0;
  const auto worker = [&](size_t r) {
    return cut.shares ? samples * sum_of(*cut.shares, r) / whole : samples * r / parts;
  };
  const size_t mine = worker(static_cast<size_t>(rank)), share = worker(static_cast<size_t>(rank) + 1) - mine;
  const auto cut_at = [&](size_t m) { return begin + mine + share * m / pieces; };
  Piece piece{cut_at(static_cast<size_t>(micro)), cut_at(static_cast<size_t>(micro) + 1), 0};
  piece.weight = static_cast<double>(piece.size()) / static_cast<double>(samples);
  return piece;
}

double sign_of(uint32_t sample) { return static_cast<double>(mix(0x5369676e, sample) >> 32); }

double sign_of_all(size_t count) {
  double sum = 0;
  for (size_t sample = 0; sample < count; sample++) {
    sum += sign_of(static_cast<uint32_t>(sample));
    if (sum >= exchange::kSigns) sum -= exchange::kSigns;
  }
  return sum;
}

void check(const Cut& cut, const std::string& data_name) {
  const size_t ranks = static_cast<size_t>(cut.ranks);
  if (cut.batch == 0) fail<InvalidArgument>("the batch must be at least 1");
  if (cut.accumulate < 1) fail<InvalidArgument>("accumulate must be at least 1, not {}", cut.accumulate);
  if (cut.count < ranks)
    fail<InvalidArgument>("{} workers, but {} has only {} samples; use at most {} workers", ranks, data_name, cut.count,
                          cut.count);
  if (cut.batch < ranks)
    fail<InvalidArgument>(
        "the global batch of {} is smaller than the number of workers ({}); some would never have work. Use a batch of "
        "at least {} or fewer workers",
        cut.batch, ranks, ranks);
  if (cut.batch / ranks < static_cast<size_t>(cut.accumulate))
    fail<InvalidArgument>("a batch of {} gives each of {} workers {} samples: too few for {} micro-batches", cut.batch,
                          ranks, cut.batch / ranks, cut.accumulate);
}

}  // namespace trireme::data
