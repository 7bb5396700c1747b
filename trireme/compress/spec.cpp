#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <sstream>

#include <trireme/base/error.h>
#include <trireme/base/nearest.h>
#include <trireme/compress/codecs.h>

namespace trireme::compress {
namespace {

constexpr const char* kNone = "none";

const CodecRow& row_of(Kind kind) {
  for (const CodecRow& row : kCodecTable)
    if (row.kind == kind) return row;
  fail<InvalidArgument>("there is no codec of kind {}", static_cast<int>(kind));
}

/// ":R" as users read it.
const char* setting_of(const CodecRow& row) {
  return row.setting == Setting::rate ? ":R" : row.setting == Setting::rank ? ":K" : "";
}

[[noreturn]] void bad_rate(const std::string& spec, const std::string& rate) {
  fail<InvalidArgument>("'{}': the rate is a part of the elements, from {} to 1, such as 0.01, not '{}'", spec,
                        kLeastRate, rate);
}

[[noreturn]] void bad_rank(const std::string& spec, const std::string& rank) {
  fail<InvalidArgument>("'{}': the rank is a whole number from 1 to {}, such as 2, not '{}'", spec, kMostRank, rank);
}

double rate_of(const std::string& text, const std::string& spec) {
  double rate = 0;
  const auto [stop, error] = std::from_chars(text.data(), text.data() + text.size(), rate);
  if (error != std::errc{} || stop != text.data() + text.size()) bad_rate(spec, text);
  return rate;
}

int rank_of(const std::string& text, const std::string& spec) {
  int rank = 0;
  const auto [stop, error] = std::from_chars(text.data(), text.data() + text.size(), rank);
  if (error != std::errc{} || stop != text.data() + text.size()) bad_rank(spec, text);
  return rank;
}

}  // namespace

bool Spec::by_matrix() const { return *this && row_of(kind).by_matrix; }

Spec spec_named(const std::string& text) {
  const size_t colon = text.find(':');
  const std::string name = text.substr(0, colon);
  if (text == kNone) return {};
  std::vector<std::string> names = {kNone};
  for (const CodecRow& row : kCodecTable) {
    names.emplace_back(row.name);
    if (name != row.name) continue;
    const bool has_setting = row.setting != Setting::nothing;
    if (has_setting && colon == std::string::npos)
      fail<InvalidArgument>("codec '{}' needs a number: {}{}, such as {}; it sends {}", text, name, setting_of(row),
                            row.example, row.help);
    if (!has_setting && colon != std::string::npos) fail<InvalidArgument>("'{}': {} has no settings", text, name);
    Spec spec{.kind = row.kind};
    if (row.setting == Setting::rank) spec.rank = rank_of(text.substr(colon + 1), text);
    if (row.setting == Setting::rate) spec.rate = rate_of(text.substr(colon + 1), text);
    check(spec);
    return spec;
  }
  if (name == kNone) fail<InvalidArgument>("'{}': {} has no settings", text, name);
  fail<InvalidArgument>("unknown codec '{}'{}: {}", text, did_you_mean(name, names), fmt::join(spec_names(), ", "));
}

void check(const Spec& spec) {
  if (!spec) return;
  const Setting setting = row_of(spec.kind).setting;
  if (setting == Setting::rank && (spec.rank < 1 || spec.rank > kMostRank))
    bad_rank(name_of(spec), std::to_string(spec.rank));
  if (setting == Setting::rate && !(spec.rate >= kLeastRate && spec.rate <= 1))
    bad_rate(name_of(spec), fmt::format("{:g}", spec.rate));
}

void check(const std::vector<Spec>& candidates) {
  for (size_t i = 0; i < candidates.size(); i++) {
    check(candidates[i]);
    if (!candidates[i])
      fail<InvalidArgument>("'{}': none is what auto compares with in any case, leave it out", auto_name(candidates));
    if (std::find(candidates.begin(), candidates.begin() + static_cast<std::ptrdiff_t>(i), candidates[i]) !=
        candidates.begin() + static_cast<std::ptrdiff_t>(i))
      fail<InvalidArgument>("'{}' has {} twice", auto_name(candidates), name_of(candidates[i]));
  }
  if (candidates.size() > kMostCandidates)
    fail<InvalidArgument>("'{}' has {} codecs, of which each takes its turns of slow steps: name at most {}",
                          auto_name(candidates), candidates.size(), kMostCandidates);
}

std::vector<Spec> candidates_named(const std::string& text) {
  const std::string word = "auto";
  if (text != word && !text.starts_with(word + ":")) return {};
  std::istringstream names(text == word ? kAutomatic : text.substr(word.size() + 1));
  std::vector<Spec> candidates;
  for (std::string name; std::getline(names, name, ',');) candidates.push_back(spec_named(name));
  if (candidates.empty()) fail<InvalidArgument>("'{}' names no codec to choose from, such as auto:fp16,int8", text);
  check(candidates);
  return candidates;
}

std::string auto_name(const std::vector<Spec>& candidates) {
  std::vector<std::string> names;
  for (const Spec& spec : candidates) names.push_back(name_of(spec));
  return fmt::format("auto:{}", fmt::join(names, ","));
}

std::string name_of(const Spec& spec) {
  if (!spec) return kNone;
  const auto row =
      std::find_if(kCodecTable.begin(), kCodecTable.end(), [&](const CodecRow& one) { return one.kind == spec.kind; });
  if (row == kCodecTable.end()) return fmt::format("codec {}", static_cast<int>(spec.kind));  // there is none
  if (row->setting == Setting::rank) return fmt::format("{}:{}", row->name, spec.rank);
  return row->setting == Setting::rate ? fmt::format("{}:{:g}", row->name, spec.rate) : row->name;
}

std::vector<std::string> spec_names() {
  std::vector<std::string> names = {kNone};
  for (const CodecRow& row : kCodecTable) names.push_back(fmt::format("{}{}", row.name, setting_of(row)));
  return names;
}

std::vector<std::string> spec_examples() {
  std::vector<std::string> examples;
  for (const CodecRow& row : kCodecTable) examples.emplace_back(row.example);
  return examples;
}

std::string spec_help() {
  std::vector<std::string> lines;
  for (const CodecRow& row : kCodecTable) lines.push_back(fmt::format("{}{}: {}", row.name, setting_of(row), row.help));
  return fmt::format("{}", fmt::join(lines, "; "));
}

std::unique_ptr<Codec> make_codec(const Spec& spec, bool feedback) {
  return spec ? row_of(spec.kind).make(spec, feedback) : nullptr;
}

}  // namespace trireme::compress
