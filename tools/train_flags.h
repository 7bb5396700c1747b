#pragma once
// The flags of `trireme train`, read by the command that launches the workers and by each worker.
#include <CLI/CLI.hpp>

#include <string>
#include <vector>

#include <trireme/cluster/environment/environment.h>
#include <trireme/train/options.h>

#include "hosts.h"

namespace trireme::tools {

struct TrainSettings {
  train::Options options;
  int workers = 0;
  int servers = 0;
  int threads = 1;
  double timeout = 60;
  std::vector<std::string> stop;
  std::string step_timeout;  // "": none
  std::string checkpoint_every = "1epoch", grace = "20s";
  std::string normalize;  // "": as for the data
  std::string optimizer = "momentum", schedule = "constant", sync = "shared", rate = "share", stale = "full",
              mean = "weighted", straggler, memory_format = "auto", loss = "auto", progress = "auto", engine = "auto",
              on_nan = "stop";
  bool quiet_report = false;  // nobody is told where the report is, as whoever asked for it reads it and removes it
  HostsFlags hosts;
};

/// Adds `train`, or a command of another name, with all flags of `train`; they are written to `settings` when the
/// command line is parsed.
CLI::App* add_train_flags(CLI::App& app, TrainSettings& settings, const std::string& name = "train");

/// Texts to settings, before anything is started: a wrong name is one error, not one per worker.
void resolve(TrainSettings& settings, const cluster::Place& place);

}  // namespace trireme::tools
