#pragma once
// Everything a training run is asked to do, with what its Parallel is asked and what that asks of its exchange. Fields
// map one to one to `--flags` and to keys of a recipe.
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include <trireme/parallel/options.h>
#include <trireme/space/updater.h>
#include <trireme/train/every.h>
#include <trireme/train/policy.h>

namespace trireme::train {

enum class MemoryFormat : uint8_t { automatic, plain, channels_last };
enum class Loss : uint8_t { automatic, cross_entropy, mse };

/// Checkpoints of a run.
struct KeepOptions {
  std::string dir;            // "": none
  Every every{.epochs = 1};   // how often
  int keep = 3;               // the newest; 0: all
  bool best = false;          // and the best, by test accuracy, or by the loss where there is none
  std::string resume;         // a folder, a checkpoint, or "latest": the newest of `dir`; "": begin anew
  bool weights_only = false;  // of `resume`: parameters and buffers, and all else anew
  double grace = 20;          // seconds for the last one, when the run is stopped

  /// The folder or checkpoint to go on with; "": begin anew.
  const std::string& from() const { return resume == "latest" ? dir : resume; }
};

struct Options {
  std::string model = "lenet";         // see models::make
  std::string data = "fashion-mnist";  // see data::open
  std::string label;                   // CSV: column to predict; default: the last
  std::optional<bool> normalize;       // CSV: numbers with mean 0 and deviation 1; default: yes
  std::optional<double> test;          // part to test with: of a CSV file without a test file, default 0.2; the last
                                       // part of a text, default 0.1
  std::string tokenizer;               // text: file of a sentencepiece model; "": tokens are bytes
  size_t batch = 64;                   // samples per update, over all workers
  std::optional<int> epochs;           // default: usual_epochs()
  int64_t max_steps = 0;               // stop after this many updates; 0: no limit
  StopOptions stop{};                  // what else ends the run early; stop.steps is the same as max_steps
  space::UpdaterOptions optimizer{};   // kind, lr, momentum, …
  ParallelOptions parallel{};  // sync, clip, accumulate, schedule, …; a run fills in what depends on its data:
                               // schedule.total and step_size, channels_last, and the seed
  int tensor = 1;    // workers that divide each layer of the model between them; the others have other samples
  int pipeline = 1;  // stages of a copy of the model, one after another, each on workers of its own
  int micro = 0;     // micro-batches that a pipeline's batch is divided into; 0: micro_batches()
  std::string schedule =
      "1f1b";  // of the pipeline: see stages::parse_schedule; that of the learning rate is `parallel`'s
  std::string record_schedule;  // file for what the stages did when in the last step, or ""
  bool recompute = false;       // activations are computed again in backward instead of kept
  double step_epochs = 10;      // schedule step: epochs between drops
  uint64_t seed = 1;            // initial parameters, shuffling, dropout, trylock's luck
  bool shuffle = true;          // the training set, anew in every epoch
  bool plain_mean = false;      // every worker's gradient counts the same, however many samples it has
  int straggler = -1;           // a worker that is made slow, to see what that does; -1: none
  double straggler_factor = 1;  // how many times as long it takes for a sample
  MemoryFormat memory_format = MemoryFormat::automatic;  // of convolution weights; automatic measures and remembers
  Loss loss = Loss::automatic;  // automatic: cross entropy for classes, mean squared error for numbers
  std::string dtype = "f32";    // f32 or f64
  std::string cache;            // file that remembers measured choices, or ""
  std::string report;           // JSON file, or ""
  std::string save;             // safetensors file, or ""
  KeepOptions keeping{};        // checkpoints
  int restarts = 0;             // how often the job was started again after a death; told in the report

  /// Updates that the run makes at most, whichever way that was said; 0: no limit.
  int64_t most_steps() const { return max_steps > 0 ? max_steps : stop.steps; }
};

/// Micro-batches of a pipeline where nobody says how many: those of a schedule's file, or else four for each stage.
int micro_batches(const Options& options);

/// Throws InvalidArgument for what is no schedule of a pipeline; those of the learning rate have another flag.
void check_schedule_name(const std::string& name);

/// Throws InvalidArgument where workers cannot divide a model as asked: a model that has no such form, numbers that do
/// not divide, modes in which workers go at their own pace, a schedule that does not work out.
void check_division(const Options& options);
/// The same of the vocabulary, where the data's tokenizer says it: `tokens` that there are.
void check_vocabulary(const Options& options, int64_t tokens);

/// Throws InvalidArgument or IoError for what cannot be honoured, as far as that shows without data and model: before
/// the training, not after it. Makes the folders of `report` and `save`.
void check(const Options& options);

/// Passes over the training set where nobody says how many: 10. CSV files and texts may be small; they are passed over
/// more often then, up to 50 times, until there are 500 updates.
int usual_epochs(bool may_be_small, int64_t steps_per_epoch);

/// Throws InvalidArgument or IoError when a file cannot be written there. Makes its folder; "" is no file.
void check_writable(const std::string& path);

MemoryFormat memory_format_named(const std::string& name);
std::vector<std::string> memory_format_names();
Loss loss_named(const std::string& name);
std::vector<std::string> loss_names();

}  // namespace trireme::train
