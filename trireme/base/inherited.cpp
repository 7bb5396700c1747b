#include <fmt/format.h>
#include <sys/stat.h>

#include <charconv>
#include <cstdint>

#include <trireme/base/inherited.h>

namespace trireme {

std::string inheritance_of(int descriptor) {
  struct stat facts {};
  if (fstat(descriptor, &facts) != 0) return "";
  return fmt::format("{}:{}", descriptor, facts.st_ino);
}

std::optional<int> inherited(const std::string& text) {
  int descriptor = -1;
  uint64_t file = 0;
  const char *begin = text.data(), *end = begin + text.size();
  const auto number = std::from_chars(begin, end, descriptor);
  if (number.ec != std::errc{} || number.ptr == end || *number.ptr != ':') return std::nullopt;
  if (const auto rest = std::from_chars(number.ptr + 1, end, file); rest.ec != std::errc{} || rest.ptr != end)
    return std::nullopt;
  struct stat facts {};
  if (fstat(descriptor, &facts) != 0 || facts.st_ino != file) return std::nullopt;
  return descriptor;
}

}  // namespace trireme
