#pragma once
// Flags that take a time: "30s", "10m", "90".
#include <CLI/CLI.hpp>
#include <fmt/format.h>

#include <string>

#include <trireme/base/duration.h>
#include <trireme/base/error.h>

namespace trireme::tools {

/// For add_option(…)->transform(): "10m" becomes "600", the seconds that the flag's number counts.
inline CLI::Validator duration_flag() {
  return CLI::Validator(
      [](std::string& text) -> std::string {
        try {
          text = fmt::format("{}", duration_named(text, "").count());
          return "";
        } catch (const InvalidArgument& error) {
          const std::string why = error.what();
          return why.substr(why.find_first_not_of(": "));  // CLI11 puts the flag in front
        }
      },
      "");
}

}  // namespace trireme::tools
