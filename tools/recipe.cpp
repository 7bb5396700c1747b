#include <fmt/format.h>
#include <toml++/toml.h>

#include <algorithm>
#include <fstream>

#include <trireme/base/error.h>
#include <trireme/cluster/environment/environment.h>

#include "recipe.h"

namespace trireme::tools {
namespace {

constexpr const char* kMany = "--stop";  // may be given several times, and is a list in a recipe

/// What a recipe says: `args` are its flags.
struct Recipe : Expanded {
  std::string file, model;
};

/// As on a command line.
std::string text_of(const toml::node& value, const std::string& place, const std::string& name) {
  if (const auto* text = value.as_string()) return **text;
  if (const auto* whole = value.as_integer()) return fmt::format("{}", **whole);
  if (const auto* number = value.as_floating_point()) return fmt::format("{}", **number);
  if (const auto* yes = value.as_boolean()) return fmt::format("{}", **yes);
  fail<InvalidArgument>("{}: the value of '{}' must be a text, a number, true or false", place, name);
}

void append_flag(const std::string& name, const toml::node& value, const std::string& place, Recipe& recipe) {
  recipe.args.push_back(fmt::format("--{}={}", name, text_of(value, place, name)));
  recipe.origins["--" + name] = place;
}

/// Keys of a `[section]` are flags too: sections only group them.
void append_flags(const toml::table& table, Recipe& recipe) {
  for (const auto& [key, value] : table) {
    const std::string name(key.str());
    const std::string place = fmt::format("{}, line {}", recipe.file, key.source().begin.line);
    if (const auto* section = value.as_table()) {
      append_flags(*section, recipe);
    } else if (name == "model" && value.is_string()) {
      recipe.model = **value.as_string();
    } else {
      if (const auto* list = value.as_array(); list != nullptr && "--" + name == kMany)
        for (const toml::node& one : *list) append_flag(name, one, place, recipe);
      else
        append_flag(name, value, place, recipe);
    }
  }
}

std::string name_in(const std::string& arg) { return arg.substr(0, arg.find('=')); }

bool has_flag(const std::vector<std::string>& args, std::initializer_list<const char*> names) {
  return std::any_of(args.begin(), args.end(), [&](const std::string& arg) {
    return std::find(names.begin(), names.end(), name_in(arg)) != names.end();
  });
}

/// Hosts and launchers say how many workers there are: a recipe's number is for one machine.
void leave_workers_to_hosts(Recipe& recipe, const std::vector<std::string>& line) {
  if (!has_flag(recipe.args, {"--workers"}) || has_flag(line, {"--workers"})) return;
  const bool hosts = has_flag(line, {"--hosts", "--hostfile"}) || has_flag(recipe.args, {"--hosts", "--hostfile"});
  if (!hosts && cluster::place_here().launcher == "alone") return;
  std::erase_if(recipe.args, [](const std::string& arg) { return name_in(arg) == "--workers"; });
  recipe.origins.erase("--workers");
}

}  // namespace

Expanded expand_recipe(std::vector<std::string> args) {
  if (args.empty() || (args[0] != "train" && args[0] != "compare")) return {std::move(args)};
  for (size_t i = 1; i < args.size(); i++) {
    if (args[i].starts_with("-") || !args[i].ends_with(".toml")) continue;
    const std::string file = args[i];
    if (!std::ifstream(file)) fail<IoError>("cannot read the recipe {}: {}", file, errno_text());
    Recipe recipe;
    recipe.file = file;
    try {
      append_flags(toml::parse_file(file), recipe);
    } catch (const toml::parse_error& error) {
      fail<InvalidArgument>("{}, line {}, column {}: {}", file, error.source().begin.line, error.source().begin.column,
                            error.description());
    }
    if (recipe.model.empty()) fail<InvalidArgument>("{} has no key 'model'", file);
    leave_workers_to_hosts(recipe, args);
    if (has_flag(args, {kMany}))  // as with any flag, the line's replace the recipe's
      std::erase_if(recipe.args, [](const std::string& arg) { return name_in(arg) == kMany; });
    Expanded expanded{{args[0], recipe.model}, std::move(recipe.origins)};
    const auto append = [&](auto begin, auto end) { expanded.args.insert(expanded.args.end(), begin, end); };
    append(recipe.args.begin(), recipe.args.end());
    for (const std::string& arg : args) expanded.origins.erase(name_in(arg));  // set anew
    append(args.begin() + 1, args.begin() + static_cast<std::ptrdiff_t>(i));
    append(args.begin() + static_cast<std::ptrdiff_t>(i) + 1, args.end());
    return expanded;
  }
  return {std::move(args)};
}

}  // namespace trireme::tools
