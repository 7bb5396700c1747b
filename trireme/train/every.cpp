#include <fmt/format.h>

#include <charconv>
#include <cmath>

#include <trireme/base/error.h>
#include <trireme/train/every.h>

namespace trireme {
namespace {

[[noreturn]] void refuse(const std::string& text) {
  fail<InvalidArgument>(
      "'{}' says not how often: a number with steps, s, min, h or epochs behind it, as in 500steps, 10min or 1epoch",
      text);
}

}  // namespace

Every every_named(const std::string& text) {
  double number = 0;
  const char* const end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, number);
  const std::string unit(stop, end);
  if (error != std::errc{} || !std::isfinite(number) || number <= 0 || number > 1e12) refuse(text);
  const auto whole = [&] {
    if (number != std::floor(number)) refuse(text);
    return static_cast<int64_t>(number);
  };
  if (unit == "step" || unit == "steps") return {.steps = whole()};
  if (unit == "epoch" || unit == "epochs") return {.epochs = whole()};
  if (unit == "s" || unit == "sec") return {.seconds = number};
  if (unit == "min" || unit == "m") return {.seconds = number * 60};
  if (unit == "h") return {.seconds = number * 3600};
  refuse(text);
}

std::string name_of(const Every& every) {
  std::string text;
  const auto add = [&](auto number, const char* unit) {
    if (number > 0) text += fmt::format("{}{}{}", text.empty() ? "" : " or ", number, unit);
  };
  add(every.steps, "steps");
  add(every.seconds, "s");
  add(every.epochs, every.epochs == 1 ? "epoch" : "epochs");
  return text;
}

}  // namespace trireme
