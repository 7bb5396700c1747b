#pragma once
// Keeps an elastic job at strength: starts workers in the place of those that died, and when more are wanted. It asks
// whoever decides about the crew (the desk) what is the case, and staffing.h what to do. For run.cpp. Not installed.
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include <trireme/cluster/launching/launcher.h>
#include <trireme/cluster/launching/launcher_metrics.h>
#include <trireme/cluster/launching/staffing.h>

#include "roster.h"

namespace trireme::cluster {

/// One thread.
class Staff {
 public:
  /// What is given outlives this.
  /// `next_number`: of the next worker; -1: the coordinator will say.
  Staff(const LaunchOptions& options, Roster& roster, LauncherMetrics& count, std::function<int()> next_number)
      : options_(options), roster_(roster), count_(count), next_number_(std::move(next_number)) {}

  /// Before anything else is asked, and whenever something has happened: what the desk says now.
  void look(CrewView now);
  const CrewView& crew() const { return crew_; }
  bool in_crew(const Child& child) const;
  /// All of the crew have ended, whatever others do.
  bool crew_ended() const;

  /// A worker has ended, in peace, or badly and the others go on.
  void ended(const Child& child);
  /// Starts who is missing, and ends who was given up and still lives; when to do so again, without news.
  std::optional<Clock::time_point> tend();
  /// The job comes to its end: nobody is started any more.
  void close() { closed_ = true; }
  bool closed() const { return closed_; }
  /// Somebody comes in the place of one that dies.
  bool replaces() const;
  /// Workers that died again and again are not started any more, and there are fewer than the job needs.
  bool hopeless() const;

 private:
  int wanted() const;
  std::optional<Clock::time_point> cast_off();
  void say_loss(const Child& child) const;

  const LaunchOptions& options_;
  Roster& roster_;
  LauncherMetrics& count_;
  const std::function<int()> next_number_;
  CrewView crew_;
  BackOff back_off_;
  int target_ = -1;     // as it was when `unreplaced_` began
  int more_ = 0;        // as it was then
  int unreplaced_ = 0;  // ends that nobody is started for; below 0: so many are started besides
  bool closed_ = false;
};

}  // namespace trireme::cluster
