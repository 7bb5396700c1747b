#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <numeric>

#include <trireme/compress/judge.h>

namespace trireme::compress {
namespace {

/// Of Student's distribution, two-sided 95 %, by samples less one.
constexpr std::array kStudent = {12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228};
constexpr double kMs = 1e3;

/// Seconds of codec and link that a bucket takes in a heat: of the link its part of all bytes.
double cost_of(const Heat& heat, size_t bucket) {
  const double all = std::accumulate(heat.bytes.begin(), heat.bytes.end(), 0.0);
  return heat.coding[bucket] + (all > 0 ? heat.link * heat.bytes[bucket] / all : 0);
}

template <class Of>
double mean_over(std::span<const Round> rounds, const Of& of) {
  double sum = 0;
  for (const Round& round : rounds) sum += of(round);
  return rounds.empty() ? 0 : sum / static_cast<double>(rounds.size());
}

template <class Of>
Interval interval_over(std::span<const Round> rounds, const Of& of) {
  std::vector<double> samples;
  for (const Round& round : rounds) samples.push_back(of(round));
  return interval_of(samples);
}

Interval step_saved(std::span<const Round> rounds, size_t way) {
  return interval_over(rounds, [&](const Round& round) { return round[0].step - round[way].step; });
}
double step_of(std::span<const Round> rounds, size_t way) {
  return mean_over(rounds, [&](const Round& round) { return round[way].step; });
}
Interval bucket_saved(std::span<const Round> rounds, size_t way, size_t bucket) {
  return interval_over(rounds,
                       [&](const Round& round) { return cost_of(round[0], bucket) - cost_of(round[way], bucket); });
}
double bucket_cost(std::span<const Round> rounds, size_t way, size_t bucket) {
  return mean_over(rounds, [&](const Round& round) { return cost_of(round[way], bucket); });
}

/// Of the ways after the first that save something for certain, the one that takes least; 0: none does.
template <class Saved, class Cost>
size_t best_of(size_t ways, const Saved& saved, const Cost& cost) {
  size_t best = 0;
  for (size_t way = 1; way < ways; way++)
    if (saved(way).least() > 0 && cost(way) < kEarns * cost(best)) best = way;
  return best;
}

Choice everywhere(size_t codec, std::span<const uint8_t> codable) {
  Choice choice(codable.size(), 0);
  for (size_t b = 0; b < choice.size(); b++)
    if (codable[b] != 0) choice[b] = static_cast<uint8_t>(codec);
  return choice;
}

bool is_none(const Choice& choice) {
  return std::all_of(choice.begin(), choice.end(), [](uint8_t codec) { return codec == 0; });
}

std::string ms(double seconds) { return fmt::format("{:.3g} ms", seconds * kMs); }
std::string ms(const Interval& saved) { return fmt::format("{:.3g} ± {:.2g} ms", saved.mean * kMs, saved.half * kMs); }

/// The candidate that saves most in a bucket, whether for certain or not.
size_t most_saving(std::span<const Round> survey, size_t bucket) {
  size_t best = 1;
  for (size_t way = 2; way < survey.front().size(); way++)
    if (bucket_cost(survey, way, bucket) < bucket_cost(survey, best, bucket)) best = way;
  return best;
}

double last_cosine(std::span<const Round> rounds, size_t way, size_t bucket) {
  const std::vector<double>& cosines = rounds.back()[way].cosines;
  return bucket < cosines.size() ? cosines[bucket] : std::numeric_limits<double>::quiet_NaN();
}

struct Names {
  std::span<const std::string> all;
  const std::string& operator[](size_t codec) const { return all[codec - 1]; }
};

/// `step_pays`: some choice makes steps shorter; otherwise no bucket has a codec, and some may still save by
/// themselves.
Verdict verdict_of(Names names, std::span<const Round> survey, size_t bucket, size_t codec, bool codable,
                   bool step_pays) {
  Verdict v;
  v.codec = codec;
  v.before = survey.back()[0].bytes[bucket];
  v.after = survey.back()[codec].bytes[bucket];
  if (!codable) {
    v.reason = "nothing in it is compressed: it has one dimension, or is excluded";
    return v;
  }
  const size_t best = codec != 0 ? codec : most_saving(survey, bucket);
  const Interval saved = bucket_saved(survey, best, bucket);
  const double plain = bucket_cost(survey, 0, bucket), coded = bucket_cost(survey, best, bucket);
  if (codec == 0) {
    v.reason = saved.least() > 0 && !step_pays
                   ? fmt::format("{} would save {} of codec and link, and the step as a whole is no shorter for it",
                                 names[best], ms(saved))
                   : fmt::format("no codec pays for certain: the best, {}, would save {} of {}", names[best], ms(saved),
                                 ms(plain));
    return v;
  }
  v.saved = saved;
  v.cosine = last_cosine(survey, codec, bucket);
  v.reason = saved.least() > 0 ? fmt::format("{} takes {} of codec and link instead of {}: {} saved in each step",
                                             names[codec], ms(coded), ms(plain), ms(saved))
                               : fmt::format("{} saves {} by itself, and the step as a whole is shortest so",
                                             names[codec], ms(saved));
  return v;
}

std::string describe(Names names, const Choice& choice) {
  std::vector<size_t> buckets(names.all.size() + 1);
  for (const uint8_t codec : choice) buckets[codec]++;
  std::string text;
  for (size_t codec = 1; codec < buckets.size(); codec++)
    if (buckets[codec] > 0)
      text += fmt::format("{}{} for {} of {} buckets", text.empty() ? "" : ", ", names[codec], buckets[codec],
                          choice.size());
  return text;
}

/// The way with the shortest steps that are shorter than those without a codec for certain; 0: none is.
size_t winner_of(std::span<const Round> trial) {
  size_t best = 0;
  for (size_t way = 1; !trial.empty() && way < trial.front().size(); way++)
    if (step_saved(trial, way).least() > 0 && step_of(trial, way) < step_of(trial, best)) best = way;
  return best;
}

}  // namespace

Interval interval_of(std::span<const double> samples) {
  const auto n = static_cast<double>(samples.size());
  if (samples.empty()) return {0, std::numeric_limits<double>::infinity()};
  const double mean = std::accumulate(samples.begin(), samples.end(), 0.0) / n;
  if (samples.size() < 2) return {mean, std::numeric_limits<double>::infinity()};
  double squares = 0;
  for (const double sample : samples) squares += (sample - mean) * (sample - mean);
  const double student = kStudent[std::min(samples.size() - 2, kStudent.size() - 1)];
  return {mean, student * std::sqrt(squares / (n - 1) / n)};
}

Proposal propose(std::span<const Round> survey, std::span<const uint8_t> codable) {
  Proposal proposal{0, Choice(codable.size(), 0)};
  if (survey.empty()) return proposal;
  const size_t ways = survey.front().size();
  proposal.uniform = best_of(
      ways, [&](size_t way) { return step_saved(survey, way); }, [&](size_t way) { return step_of(survey, way); });
  for (size_t b = 0; b < codable.size(); b++)
    if (codable[b] != 0)
      proposal.mix[b] = static_cast<uint8_t>(best_of(
          ways, [&](size_t way) { return bucket_saved(survey, way, b); },
          [&](size_t way) { return bucket_cost(survey, way, b); }));
  return proposal;
}

std::vector<Choice> ways_of(const Proposal& proposal, std::span<const uint8_t> codable) {
  std::vector<Choice> ways = {everywhere(0, codable)};
  for (const Choice& way : {everywhere(proposal.uniform, codable), proposal.mix})
    if (std::find(ways.begin(), ways.end(), way) == ways.end()) ways.push_back(way);
  return ways;
}

Judgement judge(std::span<const std::string> names, std::span<const Round> survey, std::span<const Round> trial,
                std::span<const uint8_t> codable) {
  const std::vector<Choice> ways = ways_of(propose(survey, codable), codable);
  const size_t winner = winner_of(trial);
  Judgement j;
  j.choice = ways[winner];
  j.plain = trial.empty() ? step_of(survey, 0) : step_of(trial, 0);
  j.chosen = trial.empty() ? j.plain : step_of(trial, winner);
  if (winner > 0) j.saved = step_saved(trial, winner);
  if (is_none(everywhere(1, codable)))
    j.reason = "nothing is compressed: every parameter is excluded, or has one dimension";
  else if (winner > 0)
    j.reason = fmt::format("{}: a step takes {} instead of {}, {} less", describe({names}, j.choice), ms(j.chosen),
                           ms(j.plain), ms(j.saved));
  else if (trial.empty())
    j.reason = fmt::format("nothing is compressed: with no codec of {} a step or a bucket is shorter for certain",
                           fmt::join(names, ", "));
  else
    j.reason = fmt::format("nothing is compressed: a step takes {} without, and what promised most ({}) saves {}",
                           ms(j.plain), describe({names}, ways.back()), ms(step_saved(trial, ways.size() - 1)));
  for (size_t b = 0; b < codable.size() && !survey.empty(); b++)
    j.buckets.push_back(verdict_of({names}, survey, b, j.choice[b], codable[b] != 0, winner > 0));
  return j;
}

int64_t counted_steps(double step_seconds) {
  constexpr double kHeat = 0.1, kLeast = 2, kMost = 8;
  return static_cast<int64_t>(std::clamp(std::ceil(kHeat / std::max(step_seconds, 1e-9)), kLeast, kMost));
}

int64_t steps_until_look(double extra_seconds, double step_seconds) {
  constexpr double kPart = 50, kLeast = 500, kMost = 1e6;
  return static_cast<int64_t>(
      std::clamp(std::ceil(kPart * extra_seconds / std::max(step_seconds, 1e-9)), kLeast, kMost));
}

bool has_changed(double judged_seconds, std::span<const double> lately) {
  constexpr size_t kAgree = 3;
  constexpr double kFactor = 1.5;
  if (lately.size() < kAgree) return false;
  const std::span<const double> last = lately.last(kAgree);
  const auto all = [&](const auto& is) { return std::all_of(last.begin(), last.end(), is); };
  return all([&](double seconds) { return seconds > kFactor * judged_seconds; }) ||
         all([&](double seconds) { return seconds * kFactor < judged_seconds; });
}

}  // namespace trireme::compress
