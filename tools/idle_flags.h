#pragma once
// Flags that change nothing beside the others of the same command line: `--momentum` with `--optimizer sgd`. Whoever
// gives one expects something that will not come, so it is refused before anything starts.
#include <string>
#include <vector>

#include "commands.h"
#include "train_flags.h"

namespace trireme::tools {

struct Idle {
  std::string flag;     // "--momentum"
  std::string decider;  // the flag that makes it idle: "--optimizer"
  std::string reason;   // "--momentum has no effect with --optimizer sgd: it is for momentum"
};

/// Of the flags that `command` was given. `alone`: no launcher has started this process.
std::vector<Idle> idle_flags(const CLI::App& command, const TrainSettings& settings, bool alone);

/// Whether a recipe has set the flag and the command line has overruled its decider: then it is left out, and not
/// wrong.
bool overruled(const Idle& idle, const CLI::App& command, const Invocation& invocation);

/// Throws InvalidArgument for the first flag without effect; for a recipe's with file and line.
void refuse_idle_flags(const CLI::App& command, const TrainSettings& settings, bool alone,
                       const Invocation& invocation);

}  // namespace trireme::tools
