#pragma once
#include <string>
#include <vector>

namespace trireme::models {

struct Entry {
  std::string name, input, description;
};
/// What make() knows.
const std::vector<Entry>& catalogue();

}  // namespace trireme::models
