#include <fmt/format.h>

#include <cmath>
#include <fstream>

#include <trireme/base/error.h>
#include <trireme/data/auc.h>
#include <trireme/data/criteo.h>
#include <trireme/data/random.h>

namespace trireme::data {
namespace {

constexpr uint64_t kModel = 0x637269746f;  // the planted model is the same for every seed
constexpr std::array<uint64_t, 6> kSizes = {4, 10, 25, 60, 150, 400};

/// A weight of the planted model: the sum of four uniform numbers, nearly normal, with standard deviation 0.3.
double weight_of(uint64_t field, uint64_t value) {
  Random random(mix(mix(kModel, field), value));
  double sum = -2;
  for (int i = 0; i < 4; i++) sum += random.uniform();
  return 0.3 * std::sqrt(3.0) * sum;
}

/// Appends a row's numbers and categories, and returns its logit.
double add_features(Random& random, fmt::memory_buffer& text) {
  double logit = -1.4;
  for (uint64_t i = 0; i < Clicks::kNumbers; i++) {
    text.push_back('\t');
    if (random.uniform() < 0.1) continue;  // missing
    const auto number = static_cast<int64_t>(std::exp(6 * random.uniform() * random.uniform())) - (i == 1 ? 3 : 1);
    fmt::format_to(std::back_inserter(text), "{}", number);
    logit += 0.2 * weight_of(1000 + i, 0) * std::log1p(static_cast<double>(std::max<int64_t>(0, number)));
  }
  for (uint64_t field = 0; field < Clicks::kCategories; field++) {
    text.push_back('\t');
    const double skew = random.uniform();
    const uint64_t value =
        static_cast<uint64_t>(static_cast<double>(kSizes[field % kSizes.size()]) * skew * skew * skew);
    const bool missing = random.uniform() < 0.03;
    if (!missing) fmt::format_to(std::back_inserter(text), "{:08x}", mix(field, value) & 0xffffffff);
    logit += missing ? 0 : weight_of(field, value);
  }
  text.push_back('\n');
  return logit;
}

}  // namespace

Planted make_criteo_like(const std::string& path, size_t rows, uint64_t seed) {
  std::ofstream file(path, std::ios::binary);
  if (!file) fail<IoError>("cannot write {}: {}", path, errno_text());
  std::vector<float> scores, labels;
  double clicks = 0;
  for (size_t i = 0; i < rows; i++) {
    Random random(mix(seed, i));
    fmt::memory_buffer features;
    const double logit = add_features(random, features);
    const bool clicked = random.uniform() < 1 / (1 + std::exp(-logit));
    file.put(clicked ? '1' : '0').write(features.data(), static_cast<std::streamsize>(features.size()));
    scores.push_back(static_cast<float>(logit));
    labels.push_back(clicked ? 1.0f : 0.0f);
    clicks += clicked;
  }
  if (!file.flush()) fail<IoError>("cannot write {}: {}", path, errno_text());
  const bool both = clicks > 0 && clicks < static_cast<double>(rows);
  return {.auc = both ? auc(scores, labels) : 0.5, .clicks = rows == 0 ? 0 : clicks / static_cast<double>(rows)};
}

}  // namespace trireme::data
