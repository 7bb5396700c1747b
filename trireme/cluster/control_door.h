#pragma once
// Where a running job takes orders: the coordinator of a job whose crew may change, which on one machine is its
// launcher's desk, has a door for `trireme ctl` of the same user on the same machine.
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include <trireme/base/clock.h>
#include <trireme/base/descriptor.h>

namespace trireme::cluster {

/// What became of an order.
struct Obeyed {
  bool done = false;
  std::string text;  // done: what is to be told; otherwise a sentence why not
};

/// Takes orders from its construction to its destruction, in a thread of its own.
class ControlDoor {
 public:
  /// `job` as job_id() names it. `obey` is called in the door's thread. Where no door can be opened, there is none.
  ControlDoor(std::string job, std::function<Obeyed(const std::string& words)> obey);
  ~ControlDoor();
  ControlDoor(const ControlDoor&) = delete;
  ControlDoor& operator=(const ControlDoor&) = delete;

 private:
  void run();
  void serve(int socket) const;

  const std::string job_;
  const std::function<Obeyed(const std::string& words)> obey_;
  Descriptor listener_, stop_;
  std::thread thread_;
};

/// What one job has answered.
struct Answered {
  std::string job;
  int process = 0;  // that answered
  Obeyed obeyed;
};

/// Brings an order to the job of that name, or to every job of this user on this machine where `job` is "". Waits so
/// long at most for each. Empty: there is no such job, or its crew does not change.
std::vector<Answered> order(const std::string& job, const std::string& words, Seconds timeout);

}  // namespace trireme::cluster
