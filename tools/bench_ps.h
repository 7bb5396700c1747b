#pragma once
// What `trireme bench ps` measures in a process of its own, with the server in another one.
#include <string>
#include <vector>

namespace trireme::tools {

struct PsMeasure {
  std::string out;            // file for the result: JSON lines
  std::string what = "push";  // one of kPsMeasures
  std::vector<size_t> sizes;  // bytes of the range
  bool network = false;       // gRPC over loopback instead of shared memory
  int channels = 2;           // connections of the network
  std::string tls;            // folder of certificates, or ""
  int busy = 0;               // processes that burn a core each meanwhile
};

inline const std::vector<std::string> kPsMeasures = {"push", "pull", "pull-in-place", "round-trip", "sparse"};

/// Starts a server, is its worker, writes {"bytes": B, "us": T, "memcpy": T} per size (round-trip: "mean" instead of
/// "memcpy"; sparse: {"push": R, "pull": R, "table push": R, "table pull": R} in keys per second). Blocks. Must be
/// called before the process has a second thread, as it forks. Throws what client and server throw.
int measure_ps(const PsMeasure& options);

}  // namespace trireme::tools
