#pragma once
// Slurm's short form of many host names: "node[01-03,7],gpu[0-1]x[2-3]".
#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

namespace trireme::cluster {

/// The first `most` names, in the order of the list; memory grows with `most` and the text, not with the ranges.
/// Leading zeros are kept ("[08-10]" is 08, 09, 10). Throws InvalidArgument that says what is wrong and where, also
/// when that is behind the names that were asked for.
std::vector<std::string> expand_nodelist(std::string_view text, size_t most);

}  // namespace trireme::cluster
