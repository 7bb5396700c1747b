#include "recipe.h"

#include <fmt/format.h>
#include <toml++/toml.h>

#include <trireme/base/error.h>
#include <fstream>

namespace trireme::tools {
namespace {

/// Keys of a `[section]` are flags too: sections only group them.
void append_flags(const toml::table& table, const std::string& file, std::vector<std::string>& flags, std::string& model) {
  for (const auto& [key, value] : table) {
    const std::string name(key.str());
    if (const auto* section = value.as_table())
      append_flags(*section, file, flags, model);
    else if (name == "model" && value.is_string())
      model = **value.as_string();
    else if (const auto* text = value.as_string())
      flags.push_back(fmt::format("--{}={}", name, **text));
    else if (const auto* whole = value.as_integer())
      flags.push_back(fmt::format("--{}={}", name, **whole));
    else if (const auto* number = value.as_floating_point())
      flags.push_back(fmt::format("--{}={}", name, **number));
    else if (const auto* yes = value.as_boolean())
      flags.push_back(fmt::format("--{}={}", name, **yes));
    else
      fail<InvalidArgument>("{}, line {}: the value of '{}' must be a text, a number, true or false", file, value.source().begin.line, name);
  }
}

}  // namespace

std::vector<std::string> expand_recipe(std::vector<std::string> args) {
  if (args.empty() || (args[0] != "train" && args[0] != "compare")) return args;
  for (size_t i = 1; i < args.size(); i++) {
    if (args[i].starts_with("-") || !args[i].ends_with(".toml")) continue;
    const std::string file = args[i];
    if (!std::ifstream(file)) fail<IoError>("cannot read the recipe {}: {}", file, errno_text());
    std::vector<std::string> flags;
    std::string model;
    try {
      append_flags(toml::parse_file(file), file, flags, model);
    } catch (const toml::parse_error& error) {
      fail<InvalidArgument>("{}, line {}, column {}: {}", file, error.source().begin.line, error.source().begin.column, error.description());
    }
    if (model.empty()) fail<InvalidArgument>("{} has no key 'model'", file);
    std::vector<std::string> expanded = {args[0], model};
    expanded.insert(expanded.end(), flags.begin(), flags.end());
    expanded.insert(expanded.end(), args.begin() + 1, args.begin() + static_cast<std::ptrdiff_t>(i));
    expanded.insert(expanded.end(), args.begin() + static_cast<std::ptrdiff_t>(i) + 1, args.end());
    return expanded;
  }
  return args;
}

}  // namespace trireme::tools
