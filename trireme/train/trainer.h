#pragma once
// Assembles data, model and exchange into a run.
#include <atomic>
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <trireme/cluster/world.h>
#include <trireme/exchange/balance.h>
#include <trireme/exchange/compression.h>
#include <trireme/train/options.h>
#include <trireme/train/train_metrics.h>

namespace trireme::train {

struct EpochResult {
  int epoch = 0;
  double loss = 0;  // mean training loss
  double test_loss = 0;
  double test_accuracy = -1;  // -1: no test set, or no classes
  bool has_test = false;
  double seconds = 0, samples_per_second = 0;
  int64_t tokens = 0;  // of a sample of text; 0: no text
  // In lockstep: samples of the epoch that its steps were made with, and what became of the crew.
  int64_t samples = -1;  // -1: nobody has counted
  int64_t left_out = 0;  // samples of steps that were not sound
  bool each_once = false;
  int lost = 0, joined = 0;  // workers

  /// Of a text: e to the test loss, the number of tokens among which a guess would be as good.
  double test_perplexity() const;
};

struct Result {
  std::vector<EpochResult> epochs;
  std::string sha256;  // of the final parameters
  double seconds = 0;  // of training
  int64_t updates = 0;
  size_t parameters = 0;
  bool stopped = false;                                            // somebody asked to; not so a policy
  std::string closing;                                             // stopped, as too few workers are left: a sentence
  std::vector<std::pair<std::string, metrics::Snapshot>> counted;  // on rank 0: of "rank 0", ..., "server 0", ...
  std::string saved;                                               // path, or ""
  std::string checkpoint;                                          // on rank 0: the newest complete one, or ""
  std::string resumed;                                             // the checkpoint that it went on with, or ""
  std::optional<exchange::Compression> compression;                // of --compress auto
  std::optional<exchange::Balance> balance;                        // as it was in the end; nothing: samples were even
  std::vector<Decision> decisions;                                 // of policies, on rank 0
  std::string warning;                                             // what is wrong with the losses (diagnosis.h), or ""
  std::string error;                                               // why it failed, or ""
};

/// Called on rank 0 only.
struct Listener {
  std::function<void(const std::string& sentence)> note = [](const std::string&) {};
  std::function<void(const TrainMetrics&)> progress = [](const TrainMetrics&) {};  // a few times a second
  std::function<void(const EpochResult&)> epoch = [](const EpochResult&) {};
};

/// Trains. Collective. `stop`, when it becomes true on any rank, ends the run after the update that is under way; the
/// model is still saved. `compare`: what ranks compare besides, before anything else; it is done again by those who are
/// left when one is lost before it has begun.
Result run(
    World& world, const Options& options, const Listener& listener, const std::atomic<bool>& stop,
    const std::function<void()>& compare = [] {});

/// "1.13.1, oneDNN on"
std::string torch_description();

/// The JSON report of --report.
std::string report_json(const Options& options, int workers, const Result& result);

}  // namespace trireme::train
