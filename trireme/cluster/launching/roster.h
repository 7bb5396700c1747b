#pragma once
// The processes that a launcher has started, in the order of their start: with which environment, under which number,
// and whose output is shown. For launcher.cpp. Not installed.
#include <string>
#include <vector>

#include <trireme/cluster/launching/child.h>
#include <trireme/cluster/launching/launcher.h>

#include "signals.h"

namespace trireme::cluster {

/// One thread.
class Roster {
 public:
  /// `options` is complete, and outlives this.
  Roster(const LaunchOptions& options, const CaughtSignals& signals) : options_(options), signals_(signals) {}
  /// Ends whom nobody has ended.
  ~Roster();
  Roster(const Roster&) = delete;
  Roster& operator=(const Roster&) = delete;

  /// Of ranks that are started from now on: TRIREME_DESK.
  void set_desk(const std::string& variable) { desk_ = variable; }
  /// Servers, then ranks or agents.
  void start_all();
  /// A worker that comes when the job is under way, with a number that nobody has had; -1: the coordinator gives it
  /// one. Valid until the next start.
  const Child& start_newcomer(int number);
  /// In the place of one that has died. `children` may move.
  void start_server(int number);

  /// Those whom the coordinator has given a number meanwhile have it from now on.
  void learn_numbers();

  std::vector<Child>& all() { return children_; }
  const std::vector<Child>& all() const { return children_; }
  /// Ranks and agents that have not ended.
  int living() const;
  bool ranks_ended() const;
  bool all_ended() const;
  /// Somebody has not ended, or what it wrote has not been read to its end.
  bool anything_open() const;
  /// To all who have not ended, or only those who are no servers.
  void signal(int signal, bool servers) const;

 private:
  ChildOptions rank(int number, int local, bool newcomer) const;
  ChildOptions server(int server) const;
  void start(ChildOptions options, int number, bool is_server, bool newcomer);

  const LaunchOptions& options_;
  const CaughtSignals& signals_;
  const Keeper keeper_;  // of the memory that the ranks share
  std::string desk_;
  std::vector<Child> children_;
};

}  // namespace trireme::cluster
