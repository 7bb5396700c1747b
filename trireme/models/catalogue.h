#pragma once
#include <string>
#include <vector>

namespace trireme::models {

struct Entry {
  std::string name, input, description;
};
/// What make() knows.
const std::vector<Entry>& catalogue();
/// Whether samples of a batch influence each other, so that it matters how they are divided.
bool has_batch_norm(const std::string& spec);
/// Throws InvalidArgument with the nearest name when make() would not know this one.
void check_name(const std::string& spec);

}  // namespace trireme::models
