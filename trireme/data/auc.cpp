#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

#include <trireme/base/error.h>
#include <trireme/data/auc.h>

namespace trireme::data {

double auc(std::span<const float> scores, std::span<const float> labels) {
  if (scores.size() != labels.size())
    fail<InvalidArgument>("AUC of {} scores and {} labels: there must be one for each", scores.size(), labels.size());
  std::vector<std::pair<float, bool>> samples;
  samples.reserve(scores.size());
  for (size_t i = 0; i < scores.size(); i++) {
    if (std::isnan(scores[i]) || std::isnan(labels[i]))
      fail<InvalidArgument>("AUC: sample {} has score {} and label {}; has the training diverged?", i, scores[i],
                            labels[i]);
    samples.emplace_back(scores[i], labels[i] > 0.5f);
  }
  std::sort(samples.begin(), samples.end());

  uint64_t negatives = 0, positives = 0;  // below the samples of one score
  unsigned __int128 half_wins = 0;        // pairs count two when won, one when equal
  for (size_t begin = 0, end = 0; begin < samples.size(); begin = end) {
    uint64_t here[2] = {0, 0};
    for (; end < samples.size() && samples[end].first == samples[begin].first; end++) here[samples[end].second]++;
    half_wins += static_cast<unsigned __int128>(here[1]) * (2 * negatives + here[0]);
    negatives += here[0];
    positives += here[1];
  }
  if (negatives == 0 || positives == 0)
    fail<InvalidArgument>("AUC needs samples of both kinds; there are {} positive and {} negative ones", positives,
                          negatives);
  return static_cast<double>(half_wins) / 2 / static_cast<double>(positives) / static_cast<double>(negatives);
}

}  // namespace trireme::data
