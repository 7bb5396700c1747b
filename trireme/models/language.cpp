#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>

#include <trireme/base/error.h>
#include <trireme/base/nearest.h>
#include <trireme/data/dataset.h>
#include <trireme/models/language.h>

namespace trireme::models {
namespace {

constexpr const char* kSettings = "layers, width, heads, context and dropout";

/// One setting by its name; null pointers where it has the other type.
struct Setting {
  const char* name;
  int64_t LanguageSpec::*whole;
  double LanguageSpec::*part;
};
constexpr Setting kAllSettings[] = {{"layers", &LanguageSpec::layers, nullptr},
                                    {"width", &LanguageSpec::width, nullptr},
                                    {"heads", &LanguageSpec::heads, nullptr},
                                    {"context", &LanguageSpec::context, nullptr},
                                    {"dropout", nullptr, &LanguageSpec::dropout}};

template <class Number>
Number number_in(const std::string& model, const std::string& item, const std::string& text) {
  Number value{};
  const auto [stop, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc{} || stop != text.data() + text.size())
    fail<InvalidArgument>("'{}': '{}' is not NAME=NUMBER", model, item);
  return value;
}

void set(const std::string& model, const std::string& item, LanguageSpec& spec) {
  const size_t equals = item.find('=');
  const std::string name = item.substr(0, equals);
  for (const Setting& setting : kAllSettings) {
    if (name != setting.name) continue;
    const std::string text = equals == std::string::npos ? "" : item.substr(equals + 1);
    if (setting.whole != nullptr)
      spec.*setting.whole = number_in<int64_t>(model, item, text);
    else
      spec.*setting.part = number_in<double>(model, item, text);
    return;
  }
  std::vector<std::string> known;
  for (const Setting& setting : kAllSettings) known.emplace_back(setting.name);
  for (const LanguageSize& size : language_sizes()) known.emplace_back(size.name);
  fail<InvalidArgument>("'{}': unknown '{}'{}. A size is one of tiny, small and medium; settings are {}", model, name,
                        did_you_mean(name, known), kSettings);
}

void check(const std::string& model, const LanguageSpec& spec) {
  constexpr int64_t kMost = 1 << 20;
  for (const Setting& setting : kAllSettings)
    if (setting.whole != nullptr && (spec.*setting.whole < 1 || spec.*setting.whole > kMost))
      fail<InvalidArgument>("'{}': {} is a number from 1 to {}, not {}", model, setting.name, kMost,
                            spec.*setting.whole);
  if (!(spec.dropout >= 0 && spec.dropout < 1))
    fail<InvalidArgument>("'{}': dropout is a part from 0 to less than 1, not {:g}", model, spec.dropout);
  if (spec.width % spec.heads != 0)
    fail<InvalidArgument>("'{}': a width of {} cannot be divided among {} heads. The nearest that can is {}", model,
                          spec.width, spec.heads, (spec.width / spec.heads + 1) * spec.heads);
}

bool is_size(const std::string& item, LanguageSpec& spec) {
  for (const LanguageSize& size : language_sizes()) {
    if (item != size.name) continue;
    const bool masked = spec.masked;
    spec = size.spec;
    spec.masked = masked;
    return true;
  }
  return false;
}

}  // namespace

const std::vector<LanguageSize>& language_sizes() {
  static const std::vector<LanguageSize> sizes = {
      {"tiny", {.layers = 2, .width = 64, .heads = 4, .context = 64}},
      {"small", {.layers = 4, .width = 256, .heads = 4, .context = 128}},
      {"medium", {.layers = 8, .width = 512, .heads = 8, .context = 256}},
  };
  return sizes;
}

std::optional<LanguageSpec> language_spec(const std::string& model) {
  const size_t colon = model.find(':');
  const std::string name = model.substr(0, colon);
  if (name != "gpt" && name != "bert") return std::nullopt;
  LanguageSpec spec{.masked = name == "bert"};
  std::string left = colon == std::string::npos ? "" : model.substr(colon + 1);
  if (colon != std::string::npos && left.empty())
    fail<InvalidArgument>("'{}': a size (tiny, small, medium) or settings ({}) follow the colon", model, kSettings);
  for (bool first = true; !left.empty(); first = false) {
    const size_t comma = left.find(',');
    const std::string item = left.substr(0, comma);
    left = comma == std::string::npos ? "" : left.substr(comma + 1);
    if (!(first && is_size(item, spec))) set(model, item, spec);
  }
  check(model, spec);
  return spec;
}

int64_t embedded(const LanguageSpec& spec, int64_t tokens) {
  constexpr int64_t kMultiple = 64;
  return (tokens + (spec.masked ? 1 : 0) + kMultiple - 1) / kMultiple * kMultiple;
}

void check_fits(const std::string& model, const std::string& data) {
  const bool language = language_spec(model).has_value(), text = data::text_file(data).has_value();
  if (language && !text)
    fail<InvalidArgument>(
        "{} is a language model and learns from text: --data text:FILE. For '{}' there are linear, mlp, and for images "
        "lenet, lenet-bn, twoconv and resnet18, 34 and 50",
        model, data);
  if (!language && text)
    fail<InvalidArgument>("{} learns from samples with labels, and '{}' is a text: gpt and bert learn from text", model,
                          data);
}

double usual_rate(const LanguageSpec& spec) { return std::min(0.003, 0.256 / static_cast<double>(spec.width)); }

}  // namespace trireme::models
