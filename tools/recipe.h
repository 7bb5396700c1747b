#pragma once
#include <map>
#include <string>
#include <vector>

namespace trireme::tools {

/// A command line, and where those of its flags come from that a recipe has set: "bad.toml, line 3" by "--epochs".
struct Expanded {
  std::vector<std::string> args;
  std::map<std::string, std::string> origins{};
};

/// `train recipe.toml --lr 0.1` becomes `train MODEL --key value … --lr 0.1`: a recipe is a list of flags, and what
/// stands after it wins. Its `workers` give way to hosts and launchers. So for `compare`. Other command lines pass
/// unchanged. Throws InvalidArgument with file, line and column for a recipe that is not TOML.
Expanded expand_recipe(std::vector<std::string> args);

}  // namespace trireme::tools
