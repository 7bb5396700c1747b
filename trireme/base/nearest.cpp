#include <algorithm>
#include <numeric>
#include <utility>

#include <trireme/base/nearest.h>

namespace trireme {
namespace {

/// How many letters have to be added, left out, replaced, or swapped with their neighbour.
size_t edits(std::string_view a, std::string_view b) {
  std::vector<size_t> before(b.size() + 1), last(b.size() + 1), row(b.size() + 1);
  std::iota(last.begin(), last.end(), size_t{0});
  for (size_t i = 1; i <= a.size(); i++) {
    row[0] = i;
    for (size_t j = 1; j <= b.size(); j++) {
      row[j] = std::min({last[j - 1] + (a[i - 1] != b[j - 1]), row[j - 1] + 1, last[j] + 1});
      const bool swapped = i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1];
      if (swapped) row[j] = std::min(row[j], before[j - 2] + 1);
    }
    std::swap(before, last);
    std::swap(last, row);
  }
  return last.back();
}

}  // namespace

std::string nearest(std::string_view word, const std::vector<std::string>& candidates) {
  std::string best;
  size_t fewest = std::max<size_t>(1, (word.size() + 1) / 3) + 1;
  for (const std::string& candidate : candidates) {
    const bool prefix = !word.empty() && candidate.starts_with(word);
    const size_t distance = prefix ? 1 : edits(word, candidate);
    if (distance < fewest) fewest = distance, best = candidate;
  }
  return best;
}

std::string did_you_mean(std::string_view word, const std::vector<std::string>& candidates) {
  const std::string guess = nearest(word, candidates);
  return guess.empty() ? "" : " (did you mean '" + guess + "'?)";
}

}  // namespace trireme
