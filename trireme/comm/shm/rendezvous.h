#pragma once
// How the ranks of a machine find each other and come to share one segment.
#include <memory>
#include <string>

#include <trireme/base/areas.h>
#include <trireme/base/clock.h>
#include <trireme/base/descriptor.h>

namespace trireme::comm::shm {

/// Rank 0 makes the segment, or takes its `own` (its launcher's), and hands its descriptor to the others through a unix
/// socket whose abstract name comes from `job` and the user's id: there is no file to leave behind. Blocks until all
/// `ranks` have met or `timeout` has passed. Connections of other users, and ones that do not speak the protocol, are
/// dropped. Throws Timeout with the ranks that are missing, Mismatch when ranks disagree.
///
/// `origin` is for jobs whose name others may have too, such as a port that everybody takes: ranks of one origin
/// (origin_here()) find each other first, and one whose rank 0 does not show up for two seconds takes another's. Two
/// that claim to be rank 0 with one origin, and are there at the same time, are a Mismatch for both.
///
/// Another rank whose `own` is the same memory goes on with it: pointers into it stay valid.
Spot meet(const std::string& job, int rank, int ranks, Seconds timeout, const std::string& origin = "",
          std::shared_ptr<Segment> own = nullptr);

/// Shows the other ranks of this machine that this one is here, for as long as it lives. A socket whose abstract name
/// only processes of the same machine (and network namespace) can reach: who can is one that meet() can share memory
/// with.
class Beacon {
 public:
  Beacon(const std::string& job, int rank);
  /// Whether that rank of the job has a beacon on this machine, of the same user.
  static bool seen(const std::string& job, int rank);

 private:
  Descriptor socket_;
};

}  // namespace trireme::comm::shm
