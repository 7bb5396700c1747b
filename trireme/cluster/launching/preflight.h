#pragma once
// What measurements between hosts say about them. Pure functions: `trireme doctor --hosts` measures before and prints
// after.
#include <optional>
#include <string>
#include <vector>

namespace trireme::cluster {

struct HostFacts {
  std::string name, address, version;
  std::optional<double> clock;  // seconds ahead of the first host's; none: it could not be measured
};

/// One direction between two hosts, given by their indices.
struct LinkFacts {
  size_t from = 0, to = 0;
  std::string fault;     // why there is no connection; then the numbers mean nothing
  double latency = 0;    // seconds, of a small round trip
  double bandwidth = 0;  // bits per second
};

inline constexpr const char* kWell = "ok";

struct Preflight {
  std::vector<std::string> hosts, links;  // kWell, or what is wrong in a word
  std::vector<std::string> problems;      // a sentence each: where, what, and what to do
};

/// "Slow" and "far" are relative to what the hosts are used to: the median, over all hosts, of each one's best link.
/// (The median of all links would be that of the bad ones when one of three hosts has a bad cable.) A host whose links
/// are all bad is named once, instead of each of its links.
Preflight judge_preflight(const std::vector<HostFacts>& hosts, const std::vector<LinkFacts>& links);

}  // namespace trireme::cluster
