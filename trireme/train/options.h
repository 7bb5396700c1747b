#pragma once
// Everything a training run is asked to do. Fields map one to one to `--flags` and to keys of a recipe.
#include <cstdint>
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
  size_t batch = 64;                   // samples per update, over all workers
  int epochs = 10;
  int64_t max_steps = 0;              // stop after this many updates; 0: no limit
  int accumulate = 1;                 // micro-batches per update and worker
  space::UpdaterOptions optimizer{};  // kind, lr, momentum, …
  std::string schedule = "constant";  // constant, step, cosine
  int64_t warmup = 0;                 // updates of linear rise
  double step_epochs = 10;            // schedule step: epochs between drops
  double gamma = 0.1;                 // schedule step: factor of a drop
  uint64_t seed = 1;                  // initial parameters, shuffling, dropout
  exchange::Sync sync = exchange::Sync::shared;
  ps::Stale stale = ps::Stale::full;                     // parameter servers: what a stale gradient is worth
  double clip = 0;                                       // the norm above which a worker's gradient is scaled down; 0: none
  bool plain_mean = false;                               // every worker's gradient counts the same, however many samples it has
  int straggler = -1;                                    // a worker that is made slow, to see what that does; -1: none
  double straggler_factor = 1;                           // how many times as long it takes for a step
  MemoryFormat memory_format = MemoryFormat::automatic;  // of convolution weights; automatic measures and remembers
  Loss loss = Loss::automatic;                           // automatic: cross entropy for classes, mean squared error for numbers
  std::string dtype = "f32";                             // f32 or f64
  size_t bucket_bytes = 1 << 20;
  bool overlap = true;
  std::string cache;   // file that remembers measured choices, or ""
  std::string report;  // JSON file, or ""
  std::string save;    // safetensors file, or ""
};

/// Throws InvalidArgument or IoError for what cannot be honoured, as far as that shows without data and model: before the training, not after it.
/// Makes the folders of `report` and `save`.
void check(const Options& options);

/// Throws InvalidArgument or IoError when a file cannot be written there. Makes its folder; "" is no file.
void check_writable(const std::string& path);

MemoryFormat memory_format_named(const std::string& name);
std::vector<std::string> memory_format_names();
Loss loss_named(const std::string& name);
std::vector<std::string> loss_names();

}  // namespace trireme::train
