#include "variables.h"

#include <algorithm>
#include <charconv>

namespace trireme::cluster {
namespace {

constexpr size_t kShownValue = 120;  // of a value in a message

}  // namespace

std::string shown(std::string_view value) {
  std::string result(value.substr(0, kShownValue));
  for (char& c : result)
    if (static_cast<unsigned char>(c) < 32 || c == 127) c = '?';
  return value.size() > kShownValue ? result + "..." : result;
}

bool is_host(std::string_view text) {
  const auto allowed = [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
           std::string_view("-._:%").find(c) != std::string_view::npos;
  };
  return !text.empty() && text.size() <= 253 && std::all_of(text.begin(), text.end(), allowed);
}

bool is_loopback(std::string_view host) {
  return host == "localhost" || host.starts_with("localhost.") || host == "ip6-localhost" || host.starts_with("127.") ||
         host == "::1";
}

std::string host_and_port(std::string_view host, int64_t port) {
  return host.find(':') == std::string_view::npos ? fmt::format("{}:{}", host, port)
                                                  : fmt::format("[{}]:{}", host, port);
}

std::optional<int64_t> whole_number(std::string_view text) {
  int64_t value = 0;
  const auto [stop, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc{} || stop != text.data() + text.size()) return std::nullopt;
  return value;
}

}  // namespace trireme::cluster
