#pragma once
// What the ends of processes say about a job: who was the cause, and what its user is told. For launcher.cpp. Not
// installed.
#include <optional>
#include <string>
#include <vector>

#include <trireme/cluster/launching/child.h>
#include <trireme/cluster/launching/launcher.h>

namespace trireme::cluster {

/// A job whose processes have all ended.
struct Ended {
  const std::vector<Child>& children;
  const std::vector<size_t>& failed;  // who ended badly, in the order in which it was seen
  int interrupted = 0;                // the signal
  bool at_once = false;               // they were asked twice
  double asked_to_stop_at = 0;        // on the clock of slates
  std::string desk_says;              // why the job has failed, as its desk knows; "": it does not
};

/// Who died first of those who `failed`. Deaths that were seen within a moment of each other are told apart by kind: a
/// kill is a cause, an error exit may be its consequence. Those whom the others could do without are the cause of
/// nothing, unless nobody else is.
std::optional<size_t> culprit_of(const std::vector<Child>& children, const std::vector<size_t>& failed);

LaunchResult verdict(const Ended& ended, const LaunchOptions& options);

}  // namespace trireme::cluster
