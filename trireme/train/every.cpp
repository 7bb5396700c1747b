#include <fmt/format.h>

#include <charconv>

#include <trireme/base/duration.h>
#include <trireme/base/error.h>
#include <trireme/train/every.h>

namespace trireme {
namespace {

constexpr int64_t kMost = 1'000'000'000'000;

[[noreturn]] void refuse(const std::string& text) {
  fail<InvalidArgument>(
      "'{}' does not say how often: a whole number and steps or epochs, or a time with ms, s, m (or min) or h, as in "
      "500steps, 1epoch, 10min and 1.5h",
      text);
}

Every every_time(const std::string& text) try {
  return {.seconds = duration_named(text, "how often").count()};
} catch (const InvalidArgument&) {
  refuse(text);
}

}  // namespace

Every every_named(const std::string& text) {
  int64_t count = 0;
  const char* const end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, count);
  const std::string unit(stop, end);
  const bool steps = unit == "step" || unit == "steps", epochs = unit == "epoch" || unit == "epochs";
  if (text.find_first_not_of("0123456789.") == std::string::npos) refuse(text);  // of what?
  if (!steps && !epochs) return every_time(text);
  if (error != std::errc{} || count <= 0 || count > kMost) refuse(text);
  return steps ? Every{.steps = count} : Every{.epochs = count};
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
