#pragma once
// One launch: the loop that hears what processes write, how they end, and what the user wishes. Its rooms: roster.h who
// is started, staff.h who is started later and why (elastic jobs), stopping.cpp how they are brought to an end,
// verdict.h what it all meant. For launcher.cpp. Not installed.
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <trireme/cluster/launching/launcher.h>
#include <trireme/cluster/launching/launcher_metrics.h>
#include <trireme/cluster/launching/local_desk.h>
#include <trireme/cluster/status_door.h>

#include "interruption.h"
#include "roster.h"
#include "staff.h"

struct pollfd;

namespace trireme::cluster {

/// One thread, once.
class LaunchRun {
 public:
  /// `options` has been checked, and is complete.
  explicit LaunchRun(LaunchOptions options);
  LaunchResult run();

 private:
  // ---- run.cpp: what happens ----
  bool whole_job_here() const;
  void open_desk();
  void open_status_door();
  void wait_for_events();
  int milliseconds_left() const;
  void hear(const std::vector<pollfd>& polls, size_t first);
  void reap(size_t index);
  void note_end(size_t index);
  bool others_go_on(const Child& gone) const;
  bool servers_go_on(const Child& gone) const;
  void replace_servers();
  CrewView ask_desk();
  bool stands_by() const;
  void look_after_agents();
  void tend();
  void say(const std::string& sentence) const;
  LaunchResult result() const;

  // ---- stopping.cpp: the user's wish, and pressing ----
  void forward_signal();
  void read_wish();
  void interrupt(int signal);
  void tell_to_stop(int signal);
  void end_at_once();
  void end_for_failure_elsewhere();
  void wind_down();
  void end_idle_newcomers();
  void end_deaf_agents();
  bool goes_on();
  Seconds patience() const;
  void press_after(Seconds time);
  void press_for_failure();
  void leave_servers_alone();
  void end_servers_soon();
  void escalate();

  const LaunchOptions options_;
  const CaughtSignals signals_;
  Roster roster_;
  std::optional<LocalDesk> desk_;  // of a job that is all here
  std::optional<Staff> staff_;     // of one that is elastic
  std::vector<int> servers_gone_;  // others are about to be started in their place
  std::vector<size_t> failed_;     // in the order in which they were seen
  const Clock::time_point begin_ = Clock::now();
  std::optional<Clock::time_point> end_;         // when to press harder
  std::optional<Clock::time_point> look_again_;  // at who is to be started
  std::optional<Clock::time_point> failed_at_;   // the first failure that the others could not do without
  bool asked_ = false;                           // SIGTERM was sent
  bool failed_elsewhere_ = false, hung_up_ = false;
  bool servers_alone_ = false;       // all ranks started here have ended
  bool others_ended_ = false;        // and the ranks elsewhere too
  bool drains_ = false;              // all have ended, and some output has not
  bool winding_down_ = false;        // of an elastic job that has failed: ranks save what they have
  bool crew_ended_ = false;          // of an elastic job: those who are left have no part in it
  bool job_over_ = false;            // the same, as the coordinator says, where these are agents
  std::optional<Headway> progress_;  // since they were asked to stop
  double asked_to_stop_at_ = 0;      // on the clock of slates
  bool told_to_stop_ = false;        // by whoever started this process
  bool at_once_ = false;             // they were asked again
  int interrupted_ = 0;
  Clock::time_point interrupted_at_;
  metrics::Registry registry_;
  LauncherMetrics count_{registry_};
  std::unique_ptr<StatusDoor> door_;  // last: its thread uses the registry
};

}  // namespace trireme::cluster
