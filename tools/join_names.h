#pragma once
#include <string>
#include <vector>

namespace trireme::tools {

/// "a, b or c"
inline std::string join_names(const std::vector<std::string>& names) {
  std::string text;
  for (size_t i = 0; i < names.size(); i++) {
    if (i > 0) text += i + 1 == names.size() ? " or " : ", ";
    text += names[i];
  }
  return text;
}

}  // namespace trireme::tools
