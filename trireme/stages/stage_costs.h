#pragma once
// Timelines of stages that do not cost the same: what a run has measured of each, and what follows from it. Pure
// functions.
#include <vector>

#include <trireme/stages/timeline.h>

namespace trireme::stages {

/// measured_costs() of each stage.
std::vector<Costs> measured_costs_of_stages(const Timeline& timeline, const Costs& otherwise = {});

/// As simulate(), with costs of each stage's own; transfers are the sender's. Throws InvalidArgument unless there are
/// as many as stages, and all or none have rendezvous.
Timeline simulate_stages(const Schedule& schedule, const std::vector<Costs>& of_stage);

}  // namespace trireme::stages
