#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include <trireme/exchange/balance.h>

namespace trireme::exchange {
namespace {

/// What so many stints have to promise in each of them: the less it is, the more of them.
struct Evidence {
  size_t stints;
  double gain;  // of a step's time
};
constexpr Evidence kEnough[] = {{3, 0.15}, {4, 0.06}};
constexpr double kAsGood = 1.03;      // an even division that takes at most so many times as long is preferred
constexpr double kWorthNaming = 0.1;  // of a step's time
constexpr double kExplained = 0.8;    // of the others' wait
constexpr size_t kStintsToName = 2;

bool usable(double seconds) { return std::isfinite(seconds) && seconds > 0; }

/// Until the last rank has computed its share.
double longest(std::span<const double> seconds_per_sample, const SampleShares& shares) {
  double most = 0;
  for (size_t rank = 0; rank < shares.size(); rank++)
    most = std::max(most, seconds_per_sample[rank] * static_cast<double>(shares[rank]));
  return most;
}

/// By rank. Empty where somebody has measured nothing.
std::vector<double> per_sample(const Stint& stint, const SampleShares& shares) {
  std::vector<double> seconds;
  for (size_t rank = 0; rank < shares.size(); rank++) {
    seconds.push_back(stint.ranks[rank].computing / static_cast<double>(shares[rank]));
    if (!usable(seconds.back())) return {};
  }
  return seconds;
}

SampleShares best_shares(std::span<const double> seconds_per_sample, size_t batch, size_t least) {
  const SampleShares quickest = quickest_shares(seconds_per_sample, batch, least);
  SampleShares even = even_shares(batch, static_cast<int>(seconds_per_sample.size()));
  return longest(seconds_per_sample, even) <= kAsGood * longest(seconds_per_sample, quickest) ? even : quickest;
}

/// A division by several stints, and what it would save: the least that any of them says of the division that the
/// others propose. What is chance in one stint is not in the next.
struct Proposal {
  SampleShares shares{};
  double gain = 1;  // of a step's time
  int64_t steps = 0;
};

std::vector<double> mean_of(std::span<const std::vector<double>> rows, size_t but) {
  std::vector<double> mean(rows.front().size(), 0.0);
  const auto count = static_cast<double>(rows.size() - (but < rows.size() ? 1 : 0));
  for (size_t row = 0; row < rows.size(); row++)
    for (size_t i = 0; row != but && i < mean.size(); i++) mean[i] += rows[row][i] / count;
  return mean;
}

/// Nothing where somebody has measured nothing.
std::optional<Proposal> propose(std::span<const Stint> stints, const SampleShares& before, size_t least) {
  const size_t batch = std::accumulate(before.begin(), before.end(), size_t{0});
  Proposal proposal;
  std::vector<std::vector<double>> seconds;
  for (const Stint& stint : stints) {
    seconds.push_back(per_sample(stint, before));
    if (seconds.back().empty()) return {};
    proposal.steps += stint.steps;
  }
  for (size_t one = 0; one < seconds.size(); one++) {
    const SampleShares of_others = best_shares(mean_of(seconds, one), batch, least);
    proposal.gain = std::min(proposal.gain, 1 - longest(seconds[one], of_others) / longest(seconds[one], before));
  }
  proposal.shares = best_shares(mean_of(seconds, seconds.size()), batch, least);
  return proposal;
}

/// Who computes longest in a stint, and for how much longer than the next one.
struct Slowest {
  size_t rank;
  double lead;
};
Slowest slowest_of(const std::vector<Effort>& ranks) {
  const auto longer = [](const Effort& a, const Effort& b) { return a.computing < b.computing; };
  const auto most = std::max_element(ranks.begin(), ranks.end(), longer);
  double next = 0;
  for (auto rank = ranks.begin(); rank != ranks.end(); ++rank)
    if (rank != most) next = std::max(next, rank->computing);
  return {static_cast<size_t>(most - ranks.begin()), most->computing - next};
}

}  // namespace

SampleShares even_shares(size_t batch, int ranks) {
  SampleShares shares;
  const auto parts = static_cast<size_t>(ranks);
  for (size_t rank = 0; rank < parts; rank++) shares.push_back(batch * (rank + 1) / parts - batch * rank / parts);
  return shares;
}

/// In proportion to speed, rounded down; then one sample after another to whoever is done with it first.
SampleShares quickest_shares(std::span<const double> seconds_per_sample, size_t batch, size_t least) {
  double speed = 0;
  for (double seconds : seconds_per_sample) speed += 1 / seconds;
  SampleShares shares;
  size_t given = 0;
  for (double seconds : seconds_per_sample) {
    shares.push_back(std::max(least, static_cast<size_t>(static_cast<double>(batch) / (speed * seconds))));
    given += shares.back();
  }
  const auto time = [&](size_t rank, size_t samples) {
    return seconds_per_sample[rank] * static_cast<double>(samples);
  };
  for (; given > batch; given--) {
    size_t last = shares.size();
    for (size_t rank = 0; rank < shares.size(); rank++)
      if (shares[rank] > least && (last == shares.size() || time(rank, shares[rank]) > time(last, shares[last])))
        last = rank;
    shares[last]--;
  }
  for (; given < batch; given++) {
    size_t first = 0;
    for (size_t rank = 1; rank < shares.size(); rank++)
      if (time(rank, shares[rank] + 1) < time(first, shares[first] + 1)) first = rank;
    shares[first]++;
  }
  return shares;
}

Division divide(std::span<const Stint> stints, const SampleShares& before, size_t least) {
  std::optional<Proposal> latest;
  for (const Evidence& enough : kEnough) {
    if (stints.size() < enough.stints) break;
    latest = propose(stints.last(enough.stints), before, least);
    if (!latest) return {before, false, "as before: somebody has measured nothing"};
    if (latest->shares == before || latest->gain < enough.gain) continue;
    return {
        latest->shares, true,
        fmt::format("by the speed of the last {} steps a step takes {:.0f} % less time with {} samples than with {}",
                    latest->steps, 100 * latest->gain, describe(latest->shares), describe(before))};
  }
  if (!latest) return {before, false, "as before: too little is measured yet"};
  if (latest->shares == before)
    return {before, false, fmt::format("as before: the best by the last {} steps", latest->steps)};
  return {before, false,
          fmt::format("as before: by the last {} steps others would save {:.1f} % of a step, which may be chance",
                      latest->steps, 100 * std::max(0.0, latest->gain))};
}

Division divide_anew(std::span<const double> seconds_per_sample, size_t batch, size_t least) {
  SampleShares even = even_shares(batch, static_cast<int>(seconds_per_sample.size()));
  std::vector<double> known;
  for (double seconds : seconds_per_sample)
    if (usable(seconds)) known.push_back(seconds);
  if (known.empty()) return {std::move(even), false, "nothing is measured yet"};
  std::sort(known.begin(), known.end());
  std::vector<double> all(seconds_per_sample.begin(), seconds_per_sample.end());
  for (double& seconds : all)
    if (!usable(seconds)) seconds = known[(known.size() - 1) / 2];
  SampleShares shares = best_shares(all, batch, least);
  const double gain = 1 - longest(all, shares) / longest(all, even);
  if (gain < kEnough[1].gain) return {std::move(even), false, "even: as fast as any other by the speeds before"};
  std::string reason = fmt::format("by the speeds that were known before the crew changed: {}", describe(shares));
  return {std::move(shares), true, std::move(reason)};
}

std::optional<Straggler> straggler_of(std::span<const Stint> stints) {
  if (stints.size() < kStintsToName || stints.front().ranks.size() < 2) return {};
  const auto others = static_cast<double>(stints.front().ranks.size() - 1);
  Straggler found;
  double lead = 0, steps = 0;
  for (const Stint& stint : stints) {
    const Slowest slowest = slowest_of(stint.ranks);
    if (found.rank >= 0 && static_cast<size_t>(found.rank) != slowest.rank) return {};
    found.rank = static_cast<int>(slowest.rank);
    const Effort& its = stint.ranks[slowest.rank];
    const auto weight = static_cast<double>(stint.steps);
    double waited = 0;
    for (const Effort& rank : stint.ranks) waited += std::max(0.0, rank.exchanging - its.exchanging) / others;
    found.waited += weight * waited;
    found.step += weight * (its.computing + its.exchanging);
    lead += weight * slowest.lead;
    steps += weight;
  }
  if (found.waited < kWorthNaming * found.step || lead < kExplained * found.waited) return {};
  found.waited /= steps;
  found.step /= steps;
  found.steps = static_cast<int64_t>(steps);
  return found;
}

std::string describe(const SampleShares& shares) {
  constexpr size_t kMany = 16;
  if (shares.size() <= kMany) return fmt::format("{}", fmt::join(shares, ", "));
  const auto [fewest, most] = std::minmax_element(shares.begin(), shares.end());
  return fmt::format("{} (rank {}) to {} (rank {})", *fewest, fewest - shares.begin(), *most, most - shares.begin());
}

}  // namespace trireme::exchange
