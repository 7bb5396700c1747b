#pragma once
// What `trireme train` does once its flags are read, for commands that train several times.
#include <trireme/cluster/launching/launcher.h>

#include "commands.h"
#include "train_flags.h"

namespace trireme::tools {

/// Starts the processes of a training and blocks until the last has ended; SIGINT, SIGTERM and SIGHUP go to them
/// meanwhile. Rank 0's output is shown, and what went wrong is printed. `settings` must be resolved, and
/// `invocation.args` be the command line "train …" that they come from: each worker reads it.
cluster::LaunchResult launch_training(const TrainSettings& settings, const cluster::Place& place,
                                      const Invocation& invocation);

}  // namespace trireme::tools
