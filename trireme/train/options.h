#pragma once
// Everything a training run is asked to do. Fields map one to one to `--flags` and to keys of a recipe.
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include <trireme/exchange/exchange.h>
#include <trireme/space/schedule.h>
#include <trireme/space/updater.h>

namespace trireme::train {

enum class MemoryFormat : uint8_t { automatic, plain, channels_last };
enum class Loss : uint8_t { automatic, cross_entropy, mse };

struct Options {
  std::string model = "lenet";         // see models::make
  std::string data = "fashion-mnist";  // see data::open
  std::string label;                   // CSV: column to predict; default: the last
  std::optional<bool> normalize;       // CSV: numbers with mean 0 and deviation 1; default: yes
  std::optional<double> test;          // CSV: part of the rows to test with, if there is no test file; default: 0.2
  size_t batch = 64;                   // samples per update, over all workers
  std::optional<int> epochs;           // default: usual_epochs()
  int64_t max_steps = 0;               // stop after this many updates; 0: no limit
  int accumulate = 1;                  // micro-batches per update and worker
  space::UpdaterOptions optimizer{};   // kind, lr, momentum, …
  std::string schedule = "constant";   // constant, step, cosine
  int64_t warmup = 0;                  // updates of linear rise
  double step_epochs = 10;             // schedule step: epochs between drops
  double gamma = 0.1;                  // schedule step: factor of a drop
  uint64_t seed = 1;                   // initial parameters, shuffling, dropout
  exchange::Sync sync = exchange::Sync::shared;
  exchange::Rate rate = exchange::Rate::share;  // what one gradient counts where they are applied one by one
  ps::Stale stale = ps::Stale::full;            // parameter servers: what a stale gradient is worth
  double clip = 0;  // norm above which a gradient is scaled down; 0: none. See ParallelOptions
  exchange::OnNan on_nan = exchange::OnNan::stop;  // a loss or a gradient that is NaN or infinite
  bool plain_mean = false;      // every worker's gradient counts the same, however many samples it has
  int straggler = -1;           // a worker that is made slow, to see what that does; -1: none
  double straggler_factor = 1;  // how many times as long it takes for a step
  MemoryFormat memory_format = MemoryFormat::automatic;  // of convolution weights; automatic measures and remembers
  Loss loss = Loss::automatic;  // automatic: cross entropy for classes, mean squared error for numbers
  std::string dtype = "f32";    // f32 or f64
  size_t bucket_bytes = 1 << 20;
  bool overlap = true;
  bool sync_batch_norm = false;  // batch norm over the samples of all workers
  std::string cache;             // file that remembers measured choices, or ""
  std::string report;            // JSON file, or ""
  std::string save;              // safetensors file, or ""
};

/// Throws InvalidArgument or IoError for what cannot be honoured, as far as that shows without data and model: before
/// the training, not after it. Makes the folders of `report` and `save`.
void check(const Options& options);

/// Passes over the training set where nobody says how many: 10. CSV files are small as a rule; they are passed over
/// more often, up to 50 times, until there are 500 updates.
int usual_epochs(bool csv, int64_t steps_per_epoch);

/// Throws InvalidArgument or IoError when a file cannot be written there. Makes its folder; "" is no file.
void check_writable(const std::string& path);

MemoryFormat memory_format_named(const std::string& name);
std::vector<std::string> memory_format_names();
Loss loss_named(const std::string& name);
std::vector<std::string> loss_names();

}  // namespace trireme::train
