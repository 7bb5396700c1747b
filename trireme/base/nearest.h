#pragma once
#include <string>
#include <string_view>
#include <vector>

namespace trireme {

/// The candidate with the fewest edits from `word`, or "" when none is near enough to be a likely typo.
std::string nearest(std::string_view word, const std::vector<std::string>& candidates);

/// " (did you mean 'lenet'?)" or "".
std::string did_you_mean(std::string_view word, const std::vector<std::string>& candidates);

}  // namespace trireme
