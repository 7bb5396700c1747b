#pragma once
// Starts the ranks of a job on this machine and stays with them until the last has ended.
#include <string>
#include <utility>
#include <vector>

#include <trireme/base/clock.h>

namespace trireme::cluster {

/// Exit code of a rank that failed only because another one did: it is never named as the one that died first.
constexpr int kPeerLostExit = 75;

struct LaunchOptions {
  std::vector<std::string> command;  // program and arguments
  int ranks = 1;
  int threads = 0;          // compute threads per rank (OMP_NUM_THREADS); 0: cores / ranks, at least 1
  bool only_first = false;  // pass on rank 0's output alone, unchanged; otherwise everybody's, each line with "[rank] " before it
  Seconds grace{1.0};       // between one rank's death and the end of those who do not end by themselves
  std::vector<std::pair<std::string, std::string>> environment;  // added to every rank's
};

struct LaunchResult {
  int exit_code = 0;      // 0, or the first failed rank's (128 + signal when one killed it)
  int first_failed = -1;  // rank, or -1
  bool interrupted = false;
  std::string reason;                   // "rank 1 died first: killed by signal 9 (SIGKILL) after 3.2 s", or ""
  std::vector<std::string> last_lines;  // of that rank
};

/// Starts `ranks` processes, writes their output to standard output and standard error, forwards SIGINT, SIGTERM and SIGHUP, and ends all when one
/// dies. A second SIGINT kills. No rank survives this process, even if it is killed. Call from a single-threaded program.
LaunchResult launch(const LaunchOptions& options);

}  // namespace trireme::cluster
