#pragma once
// Assembles data, model and exchange into a run.
#include <atomic>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include <trireme/cluster/world.h>
#include <trireme/train/options.h>

namespace trireme::train {

/// How far the run is: for a progress line. Times are of training alone, without evaluation.
struct Progress {
  int epoch = 0, epochs = 0;      // from 1
  size_t step = 0, steps = 0;     // within the epoch
  double loss = 0;                // mean of the epoch so far
  double samples_per_second = 0;  // of all workers, this epoch
  double seconds_left = 0;        // of the whole run, estimated
};

struct EpochResult {
  int epoch = 0;
  double loss = 0;  // mean training loss
  double test_loss = 0;
  double test_accuracy = -1;  // -1: no test set, or no classes
  bool has_test = false;
  double seconds = 0, samples_per_second = 0;
};

struct Result {
  std::vector<EpochResult> epochs;
  std::string sha256;  // of the final parameters
  double seconds = 0;  // of training
  int64_t updates = 0;
  size_t parameters = 0;
  bool stopped = false;                         // somebody asked to
  std::optional<exchange::Statistics> servers;  // what parameter servers counted
  std::string saved;                            // path, or ""
  std::string warning;                          // what is wrong with the losses (diagnosis.h), or ""
};

/// Called on rank 0 only.
struct Listener {
  std::function<void(const std::string& sentence)> note = [](const std::string&) {};
  std::function<void(const Progress&)> progress = [](const Progress&) {};
  std::function<void(const EpochResult&)> epoch = [](const EpochResult&) {};
};

/// Trains. Collective. `stop`, when it becomes true on any rank, ends the run after the update that is under way; the
/// model is still saved.
Result run(World& world, const Options& options, const Listener& listener, const std::atomic<bool>& stop);

/// "1.13.1, oneDNN on"
std::string torch_description();

/// The JSON report of --report.
std::string report_json(const Options& options, int workers, const Result& result);

}  // namespace trireme::train
