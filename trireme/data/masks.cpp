#include <algorithm>
#include <cmath>
#include <numeric>
#include <vector>

#include <trireme/data/masks.h>
#include <trireme/data/random.h>

namespace trireme::data {

size_t masked_of(size_t context) {
  return std::max<size_t>(1, static_cast<size_t>(std::llround(0.15 * static_cast<double>(context))));
}

void mask_tokens(std::span<int64_t> tokens, std::span<int64_t> targets, int64_t vocabulary, uint64_t seed) {
  Random random(seed);
  std::vector<size_t> positions(tokens.size());
  std::iota(positions.begin(), positions.end(), 0);
  std::fill(targets.begin(), targets.end(), kNoTarget);
  const size_t chosen = masked_of(tokens.size());
  for (size_t i = 0; i < chosen; i++) {
    std::swap(positions[i], positions[i + random.below(positions.size() - i)]);
    const size_t at = positions[i];
    targets[at] = tokens[at];
    const uint64_t fate = random.below(10);
    if (fate < 8)
      tokens[at] = vocabulary;
    else if (fate == 8)
      tokens[at] = static_cast<int64_t>(random.below(static_cast<uint64_t>(vocabulary)));
  }
}

}  // namespace trireme::data
