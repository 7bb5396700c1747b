#include <fmt/format.h>

#include <array>
#include <charconv>
#include <cmath>

#include <trireme/base/duration.h>
#include <trireme/base/error.h>

namespace trireme {
namespace {

struct Unit {
  const char* name;
  double seconds;
};
constexpr std::array<Unit, 6> kUnits = {{{"", 1}, {"s", 1}, {"m", 60}, {"min", 60}, {"h", 3600}, {"ms", 0.001}}};
constexpr double kLongest = 10 * 365.25 * 86400;

}  // namespace

Seconds duration_named(const std::string& text, const std::string& what) {
  double number = 0;
  const char* const end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, number, std::chars_format::fixed);
  const std::string unit(stop, end);
  for (const Unit& known : kUnits) {
    if (error != std::errc{} || !std::isfinite(number) || unit != known.name) continue;
    const double seconds = number * known.seconds;
    if (seconds > 0 && seconds <= kLongest) return Seconds(seconds);
    fail<InvalidArgument>("{} must be more than 0 and at most ten years, not '{}'", what, text);
  }
  fail<InvalidArgument>(
      "{}: '{}' is not a duration: a number and ms, s, m (or min) or h, as in 30s, 10m and 1.5h; "
      "without a unit it is seconds",
      what, text);
}

std::string duration_text(Seconds duration) {
  const double seconds = duration.count();
  for (const Unit& unit : {Unit{"h", 3600}, Unit{"m", 60}})
    if (seconds >= unit.seconds && std::fmod(seconds * 10, unit.seconds) == 0)
      return fmt::format("{:g}{}", seconds / unit.seconds, unit.name);
  return seconds < 1 ? fmt::format("{:g}ms", seconds * 1000) : fmt::format("{:g}s", seconds);
}

}  // namespace trireme
