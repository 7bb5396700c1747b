#pragma once
// The flags of `trireme train`, read by the command that launches the workers and by each worker.
#include <CLI/CLI.hpp>

#include <optional>
#include <string>
#include <vector>

#include <trireme/cluster/environment/environment.h>
#include <trireme/train/options.h>

#include "elastic_flags.h"
#include "hosts.h"

namespace trireme::tools {

struct TrainSettings {
  train::Options options;
  std::string workers_given = "0";  // "4", "2:8"; "0": one per core
  int workers = 0;                  // to begin with, once resolved
  ElasticFlags elastic;
  cluster::Elasticity elasticity;  // once resolved
  double silence = 30;             // once resolved: seconds after which a worker of a crew that changes counts as dead
  bool starts_again = false;       // once resolved: after a death all start again, from the newest checkpoint
  int restarts = -1;               // told to workers of such a job: how often that has happened
  int servers = 0, replicas = 0;
  int threads = 1;
  double timeout = 60;
  std::vector<std::string> stop;
  std::string step_timeout;  // "": none
  std::string checkpoint_every = "1epoch", grace = "20s";
  std::string normalize;     // "": as for the data
  std::optional<double> lr;  // as for the model
  std::string optimizer = "auto", lr_schedule = "constant", sync = "shared", rate = "share", stale = "full",
              mean = "weighted", balance = "even", straggler, memory_format = "auto", loss = "auto", progress = "auto",
              engine = "auto", on_nan = "stop", precision = "f32";
  std::string compress = "none", ahead = "idle";
  double balance_stint = 0.5;  // seconds
  size_t zero_window = 0;      // MB; 0: as for the model
  bool quiet_report = false;   // nobody is told where the report is, as whoever asked for it reads it and removes it
  HostsFlags hosts;
};

/// Adds `train`, or a command of another name, with all flags of `train`; they are written to `settings` when the
/// command line is parsed.
CLI::App* add_train_flags(CLI::App& app, TrainSettings& settings, const std::string& name = "train");

/// The optimizer and its learning rate, where they were not given: momentum at 0.05; for language models adamw at the
/// rate that suits their size. Throws InvalidArgument for an optimizer or a model that there is not.
void choose_optimizer(TrainSettings& settings);

/// Throws InvalidArgument for --replicas that cannot be.
void check_replicas(int replicas, int servers, bool several_hosts);

/// Texts to settings, before anything is started: a wrong name is one error, not one per worker.
void resolve(TrainSettings& settings, const cluster::Place& place);

}  // namespace trireme::tools
