#pragma once
#include <fmt/format.h>

#include <string>

namespace trireme::tools {

/// "12,345": rounded to a whole number that is not negative.
inline std::string with_commas(double value) {
  std::string digits = fmt::format("{:.0f}", value);
  for (auto at = static_cast<std::ptrdiff_t>(digits.size()) - 3; at > 0; at -= 3)
    digits.insert(static_cast<size_t>(at), 1, ',');
  return digits;
}

}  // namespace trireme::tools
