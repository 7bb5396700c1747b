#pragma once
// Jobs whose ranks cannot go on without one of them (meshes, and modes without a crew that changes): after a death all
// are started again, with those who are left or with as many as before, and go on from the newest checkpoint.
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include <trireme/cluster/launching/hosts.h>
#include <trireme/cluster/mesh_plan.h>

#include "train_flags.h"

namespace trireme::tools {

/// What is started next, after a launch with `before`.
struct NextLaunch {
  std::optional<cluster::Degrees> degrees;  // none: this is the end
  std::string reason;                       // a sentence without a full stop, about both
};
NextLaunch next_launch(const cluster::Elasticity& elasticity, const cluster::Degrees& before, bool fixed_stages,
                       const cluster::BackOff& deaths);

/// Where so many workers start again on hosts, of which number `failed` has lost one (-1: it is not known). Fewer than
/// before: whole hosts rather than parts of several.
cluster::Hosts hosts_for(cluster::Hosts hosts, int workers, int failed);

/// Launches until a launch ends well, is interrupted, or fails for another reason than a death by a signal. `launch`
/// gets the flags to add to the workers' command line, and their number; `say` hears what happens.
cluster::LaunchResult launch_again_and_again(
    const TrainSettings& settings,
    const std::function<cluster::LaunchResult(int workers, const std::vector<std::string>& flags)>& launch,
    const std::function<void(const std::string&)>& say);

}  // namespace trireme::tools
