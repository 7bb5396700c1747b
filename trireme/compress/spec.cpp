#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <sstream>

#include <trireme/base/error.h>
#include <trireme/base/nearest.h>
#include <trireme/compress/spec.h>

namespace trireme::compress {
namespace {

struct Name {
  const char* kind;
  const char* setting;  // "" when there is none
  const char* example;
};

constexpr std::array<Name, 9> kCodecs = {{{"none", "", ""},
                                          {"fp16", "", ""},
                                          {"bf16", "", ""},
                                          {"int8", "", ""},
                                          {"sign", "", ""},
                                          {"topk", ":R", "topk:0.01 sends one element of a hundred"},
                                          {"randomk", ":R", "randomk:0.1 sends one element of ten"},
                                          {"powersgd", ":K", "powersgd:2 sends two columns and two rows of a matrix"},
                                          {"sketch", ":R", "sketch:0.1 sends a tenth of the bytes"}}};

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

Spec spec_named(const std::string& text) {
  const size_t colon = text.find(':');
  const std::string kind = text.substr(0, colon);
  std::vector<std::string> kinds;
  for (size_t i = 0; i < kCodecs.size(); i++) {
    kinds.emplace_back(kCodecs[i].kind);
    if (kind != kCodecs[i].kind) continue;
    Spec spec{.kind = static_cast<Spec::Kind>(i)};
    const bool has_setting = *kCodecs[i].setting != 0;
    if (has_setting && colon == std::string::npos)
      fail<InvalidArgument>("codec '{}' needs a number: {}{}; {}", text, kind, kCodecs[i].setting, kCodecs[i].example);
    if (!has_setting && colon != std::string::npos) fail<InvalidArgument>("'{}': {} has no settings", text, kind);
    if (!has_setting) return spec;
    if (spec.kind == Spec::powersgd)
      spec.rank = rank_of(text.substr(colon + 1), text);
    else
      spec.rate = rate_of(text.substr(colon + 1), text);
    check(spec);
    return spec;
  }
  fail<InvalidArgument>("unknown codec '{}'{}: {}", text, did_you_mean(kind, kinds), fmt::join(spec_names(), ", "));
}

void check(const Spec& spec) {
  if (spec.kind >= kCodecs.size())
    fail<InvalidArgument>("there is no codec of kind {}: {}", static_cast<int>(spec.kind),
                          fmt::join(spec_names(), ", "));
  if (spec.kind == Spec::powersgd) {
    if (spec.rank < 1 || spec.rank > kMostRank) bad_rank(name_of(spec), std::to_string(spec.rank));
  } else if (*kCodecs[spec.kind].setting != 0 && !(spec.rate >= kLeastRate && spec.rate <= 1)) {
    bad_rate(name_of(spec), fmt::format("{:g}", spec.rate));
  }
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
  if (spec.kind >= kCodecs.size()) return fmt::format("codec {}", static_cast<int>(spec.kind));  // there is none
  const std::string kind = kCodecs[spec.kind].kind;
  if (spec.kind == Spec::powersgd) return fmt::format("{}:{}", kind, spec.rank);
  return *kCodecs[spec.kind].setting != 0 ? fmt::format("{}:{:g}", kind, spec.rate) : kind;
}

std::vector<std::string> spec_names() {
  std::vector<std::string> names;
  for (const Name& name : kCodecs) names.push_back(fmt::format("{}{}", name.kind, name.setting));
  return names;
}

}  // namespace trireme::compress
