#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include <trireme/data/random.h>

#include "chaos_plan.h"

namespace trireme::tools {
namespace {

/// Half of it to one and a half.
double around(double mean, data::Random& random) { return mean * (0.5 + random.uniform()); }

std::string number_or_dash(const std::optional<double>& value, const char* format) {
  return value ? fmt::format(fmt::runtime(format), *value) : "-";
}

std::string line_of(const char* what, const std::vector<double>& values) {
  if (values.empty()) return "";
  const Summary s = summary_of(values);
  return fmt::format("{}: median {:.1f} ms, p99 {:.1f} ms, most {:.1f} ms, of {} tries\n", what, s.median, s.p99,
                     s.most, s.tries);
}

}  // namespace

std::vector<Blow> plan_of(const PlanOptions& options) {
  data::Random random(data::mix(options.seed, 0x63686f6173));
  std::vector<Blow> plan;
  for (int left_kills = options.kills, left_stops = options.stops; left_kills + left_stops > 0;) {
    const bool kill = random.below(static_cast<uint64_t>(left_kills + left_stops)) < static_cast<uint64_t>(left_kills);
    (kill ? left_kills : left_stops)--;
    Blow blow{.kind = kill ? Blow::kill : Blow::stop};
    blow.after = around(options.every, random);
    blow.choice = random.uniform();
    const double lasts = around(options.stop_for, random);  // drawn for kills too: the rest of the plan stays
    if (!kill) blow.lasts = lasts;
    plan.push_back(blow);
  }
  return plan;
}

double duration_of(const std::vector<Blow>& plan) {
  double seconds = 0;
  for (const Blow& blow : plan) seconds += blow.after + blow.lasts;
  return seconds;
}

size_t victim_of(const Blow& blow, size_t crew) {
  return std::min(crew - 1, static_cast<size_t>(blow.choice * static_cast<double>(crew)));
}

std::optional<double> Struck::beyond_ms() const {
  if (!next_ms) return std::nullopt;
  return std::max(0.0, *next_ms - step_ms.value_or(0));
}

Summary summary_of(std::vector<double> values) {
  if (values.empty()) return {};
  std::sort(values.begin(), values.end());
  const size_t n = values.size(), middle = n / 2;
  const auto rank = static_cast<size_t>(std::ceil(0.99 * static_cast<double>(n)));
  return {n, n % 2 == 1 ? values[middle] : (values[middle - 1] + values[middle]) / 2, values[rank - 1], values.back()};
}

std::vector<double> beyond_of(const std::vector<Struck>& struck, Blow::Kind kind) {
  std::vector<double> values;
  for (const Struck& one : struck)
    if (one.blow.kind == kind && one.beyond_ms()) values.push_back(*one.beyond_ms());
  return values;
}

std::vector<double> full_of(const std::vector<Struck>& struck, Blow::Kind kind) {
  std::vector<double> values;
  for (const Struck& one : struck)
    if (one.blow.kind == kind && one.full_ms) values.push_back(*one.full_ms);
  return values;
}

std::string table_of(const std::vector<Struck>& struck) {
  std::string text = fmt::format("{:>4}  {:>9}  {:<14}  {:>6}  {:>9}  {:>7}  {:>9}  {:>9}  {:>9}\n", "#", "after s",
                                 "what", "rank", "process", "crew", "step ms", "next ms", "full ms");
  for (size_t i = 0; i < struck.size(); i++) {
    const Struck& s = struck[i];
    const std::string what = s.blow.kind == Blow::kill ? "kill -9"
                             : s.given_up              ? fmt::format("lost {:.2f} s", s.blow.lasts)
                                                       : fmt::format("stop {:.2f} s", s.blow.lasts);
    text += fmt::format("{:>4}  {:>9.2f}  {:<14}  {:>6}  {:>9}  {:>7}  {:>9}  {:>9}  {:>9}\n", i + 1, s.at, what,
                        s.rank, s.process, fmt::format("{}>{}", s.before, s.after), number_or_dash(s.step_ms, "{:.1f}"),
                        number_or_dash(s.next_ms, "{:.1f}"), number_or_dash(s.full_ms, "{:.0f}"));
  }
  text += line_of("from a kill to the next step, beyond a step's own time", beyond_of(struck, Blow::kill));
  text += line_of("from a kill to a step of as many workers as before", full_of(struck, Blow::kill));
  text += line_of("from a stop to the next step, beyond a step's own time", beyond_of(struck, Blow::stop));
  return text;
}

}  // namespace trireme::tools
