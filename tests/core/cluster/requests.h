#pragma once
// The coordinator's requests as bytes, parsed and served as they are when they come over the network: the way in for
// tests that send it anything.
#include <string>
#include <vector>

#include <trireme/cluster/coordination/desk.h>

namespace trireme::cluster {

enum class Request { attend, put, get };

/// What became of the bytes.
struct Outcome {
  bool parsed = false;
  bool accepted = false;
};

/// Parses and serves one request. A stream's messages share `member`, which is 0 before the first.
Outcome serve_bytes(Desk& desk, Request request, const std::string& token, const std::string& bytes, uint64_t& member);

/// Well-formed requests of that kind, one for each thing that can be said.
std::vector<std::string> sample_requests(Request request, const std::string& job, const std::string& version,
                                         uint64_t member);

}  // namespace trireme::cluster
