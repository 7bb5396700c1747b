#pragma once
// Environment variables as numbers and addresses, for environment.cpp. Not installed.
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include <trireme/base/error.h>
#include <trireme/cluster/environment/environment.h>

namespace trireme::cluster {

constexpr int64_t kLargestInt = 2147483647;
constexpr int64_t kLargestPort = 65535;
constexpr int64_t kLargestRank = 65535;

/// A value as it may stand in a message: one line, not too long.
std::string shown(std::string_view value);
bool is_host(std::string_view text);
bool is_loopback(std::string_view host);
/// An IPv6 address goes into brackets.
std::string host_and_port(std::string_view host, int64_t port);
std::optional<int64_t> whole_number(std::string_view text);

/// Reads variables; everything that is wrong with one is thrown with its name.
class Variables {
 public:
  explicit Variables(const Lookup& lookup) : lookup_(lookup) {}

  bool has(const char* name) const { return lookup_(name) != nullptr; }

  /// "" when it is not set.
  std::string text(const char* name) const { return has(name) ? lookup_(name) : ""; }

  std::string needed(const char* name, const char* because) const {
    if (!has(name))
      fail<InvalidArgument>("the environment has {} but no {}; a launcher sets both. Set {}, or unset {}", because,
                            name, name, because);
    return text(name);
  }

  int64_t number(const char* name, const char* because, int64_t least, int64_t most = kLargestInt) const {
    const std::string value = needed(name, because);
    const auto result = whole_number(value);
    if (!result || *result < least || *result > most)
      fail<InvalidArgument>(
          "the environment variable {}='{}' must be a whole number of at least {}{}; set it right or unset {}", name,
          shown(value), least, most == kLargestInt ? "" : fmt::format(" and at most {}", most), because);
    return *result;
  }

  /// A host name or address, without a port.
  std::string host(const char* name, const char* because) const {
    std::string value = needed(name, because);
    if (value.starts_with('[') && value.ends_with(']')) value = value.substr(1, value.size() - 2);
    if (!is_host(value))
      fail<InvalidArgument>("the environment variable {}='{}' must be a host name or an address", name, shown(value));
    return value;
  }

 private:
  const Lookup& lookup_;
};

}  // namespace trireme::cluster
