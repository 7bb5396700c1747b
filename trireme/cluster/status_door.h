#pragma once
// Where a running process says what it has counted: `trireme ctl status` knocks at the doors of all processes of its
// user on this machine. A rank and a server answer for themselves, at once and whatever else they do; a coordinator
// says what it has heard from members, on other machines too.
#include <functional>
#include <optional>
#include <thread>
#include <vector>

#include <trireme/base/clock.h>
#include <trireme/base/descriptor.h>
#include <trireme/cluster/coordination/member_metrics.h>

namespace trireme::cluster {

/// Answers visitors from its construction to its destruction, in a thread of its own.
class StatusDoor {
 public:
  /// `look` is called in the door's thread. Where no door can be opened, there is none: nobody depends on it.
  explicit StatusDoor(std::function<std::vector<MemberMetrics>()> look);
  ~StatusDoor();
  StatusDoor(const StatusDoor&) = delete;
  StatusDoor& operator=(const StatusDoor&) = delete;

 private:
  void run();

  const std::function<std::vector<MemberMetrics>()> look_;
  Descriptor listener_, stop_;
  std::thread thread_;
};

struct Status {
  std::vector<MemberMetrics>
      members;  // by job, ranks first, then servers, and number; each once: its own word rather than a coordinator's
  std::vector<int> silent;  // processes that have not answered
};

/// Asks at all doors of this user on this machine. Waits so long at most for each.
Status ask_for_status(Seconds timeout);

/// Asks at the door of one process; nothing: it has none, or has not answered within that time. Of a coordinator, what
/// it says of itself.
std::optional<MemberMetrics> ask_process(int process, Seconds timeout);

}  // namespace trireme::cluster
