#include <algorithm>
#include <random>

#include "sparse_speed.h"

namespace trireme::tools {
namespace {

using ps::SparseTable;

/// Keys as a hash of something would make them: row i's.
uint64_t key_of(uint64_t i) { return (i + 1) * 0xbf58476d1ce4e5b9; }

/// Keys per second of the median call, after one to warm up; each call gets other keys.
template <class Call>
double rate_of(const std::vector<std::vector<uint64_t>>& batches, Seconds time, const Call& call) {
  call(batches[0]);
  std::vector<double> rates;
  const auto begin = Clock::now();
  for (size_t i = 1; rates.size() < 5 || Clock::now() - begin < time; i++) {
    const std::vector<uint64_t>& keys = batches[i % batches.size()];
    const auto start = Clock::now();
    call(keys);
    rates.push_back(static_cast<double>(keys.size()) / Seconds(Clock::now() - start).count());
  }
  std::nth_element(rates.begin(), rates.begin() + static_cast<std::ptrdiff_t>(rates.size() / 2), rates.end());
  return rates[rates.size() / 2];
}

}  // namespace

SparseSpeed measure_sparse(const SparseTable::Options& options, size_t rows, size_t keys, Seconds time) {
  if (rows == 0 || keys == 0)
    fail<InvalidArgument>("a measurement needs at least one row and one key, not {} and {}", rows, keys);
  SparseTable table(options);
  std::mt19937_64 random(1);
  std::vector<float> values(keys * options.width), gradients(keys * options.width, 1e-3f);
  std::vector<uint64_t> all;
  const auto begin = Clock::now();
  for (size_t row = 0; row < rows; row += all.size()) {
    all.clear();
    for (size_t i = row; i < std::min(rows, row + keys); i++) all.push_back(key_of(i));
    table.pull(all, values.data());
  }
  SparseSpeed speed{.create = static_cast<double>(rows) / Seconds(Clock::now() - begin).count()};

  std::vector<std::vector<uint64_t>> batches(8, std::vector<uint64_t>(keys));
  for (auto& batch : batches)
    for (uint64_t& key : batch) key = key_of(random() % rows);
  speed.pull = rate_of(batches, time, [&](const auto& batch) { table.pull(batch, values.data()); });
  speed.push = rate_of(batches, time, [&](const auto& batch) { table.push(batch, gradients.data(), 1e-3); });
  speed.bytes = table.bytes();
  return speed;
}

}  // namespace trireme::tools
