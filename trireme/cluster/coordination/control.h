#pragma once
// What `trireme ctl` can ask of a coordinator.
#include <string>

#include <trireme/cluster/control_door.h>
#include <trireme/cluster/coordination/desk.h>

namespace trireme::cluster {

/// The words: "scale N", "drain RANK", and "crew", which is answered with line_of(). `job` as job_id() names it.
/// Thread-safe.
Obeyed obey(Desk& desk, const std::string& words, const std::string& job);

/// The crew, its target, who waits and who was lost, as one JSON object in one line.
std::string line_of(const CrewSnapshot& crew, const std::string& job);

}  // namespace trireme::cluster
