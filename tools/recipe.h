#pragma once
#include <string>
#include <vector>

namespace trireme::tools {

/// `train recipe.toml --lr 0.1` becomes `train MODEL --key value … --lr 0.1`: a recipe is a list of flags, and what stands after it wins.
/// So for `compare`. Other command lines pass unchanged. Throws InvalidArgument with file, line and column for a recipe that is not TOML.
std::vector<std::string> expand_recipe(std::vector<std::string> args);

}  // namespace trireme::tools
