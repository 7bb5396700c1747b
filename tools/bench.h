#pragma once
// What all benchmarks share: alternate rounds of ours and the peers, medians, one JSON object a line.
#include <array>
#include <filesystem>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include <trireme/cluster/launching/hosts.h>

namespace trireme::tools {

/// One line of output. A ratio above 1 means that ours is better.
struct Measurement {
  std::string bench, name, metric;
  std::map<std::string, std::vector<double>> samples;  // "ours", and each peer
  bool more_is_better = false;                         // a rate; otherwise a time
};

/// Medians over the rounds; a ratio is the median of the rounds' ratios. Prints
/// {"bench":…,"case":…,"metric":…,"ours":…,"peers":{…},"ratio":{…},"samples":{…}}.
void print_measurement(const Measurement& measurement);

/// Adds a sample of a run that may have failed: then the value is not above 0, and nothing is added.
void add_sample(Measurement& measurement, const std::string& who, double value);

/// Runs each of `who` once a round, and begins with another one every time: what a program leaves behind disturbs each
/// of the others equally often.
void alternate(int rounds, const std::vector<std::function<void()>>& who);

/// Runs a command in `ranks` processes (with RANK, WORLD_SIZE, … set, one thread each) whose rank 0 writes JSON lines
/// to the file that replaces "{out}" in it. Returns these lines; empty, with a line on stderr, when the command failed.
/// With `server_command`, the job has a parameter server.
std::vector<std::string> run_and_read(const std::string& what, int ranks, const std::vector<std::string>& command,
                                      const std::vector<std::string>& server_command = {});
/// A number in the last of such lines; -1 when it is not there.
double number_in(const std::vector<std::string>& lines, const char* key);
/// The same on hosts; the first of them must be this one, as rank 0 writes the file.
std::vector<std::string> run_on_hosts(const std::string& what, cluster::HostsOptions hosts,
                                      const std::vector<std::string>& command);

/// Compiles a peer's program once; returns its path, or "" when there is no compiler for it.
std::string compile_peer(const std::string& compiler, const std::string& source, const std::vector<std::string>& flags);

/// A folder that goes away with the process.
const std::filesystem::path& scratch();

/// "leaving out NAME: REMEDY", once per name.
void leave_out(const std::string& name, const std::string& remedy);

double median(std::vector<double> values);

// What trireme-worker measures for ours. It joins the world that run_and_read() launched.
int measure_collective(const std::string& out, const std::string& collective, const std::vector<size_t>& sizes,
                       bool private_memory);
/// Sizes are those of the whole vector.
inline constexpr std::array kCollectives = {"allreduce", "reduce-scatter", "all-gather"};
/// A training step's time; `codec`: of its gradients between machines. `steps`: timed; 0: as many as suit the case.
struct StepMeasure {
  std::string name;
  bool alone = false;
  std::string codec = "none";  // "auto…": timed when it has chosen
  int steps = 0;
};
int measure_step(const std::string& out, const StepMeasure& what);
/// What codecs leave out of the gradients of a model that has learnt for some steps; a line for each codec.
int measure_gradients(const std::string& out, const std::string& model, const std::vector<std::string>& codecs);
inline constexpr std::array kGradientModels = {"lenet", "mlp512", "gpt"};
/// What a measured step does besides: nothing, look for NaN (the default of training), or clip every gradient. Three
/// models in one program take turns of a few steps, so that the machine's moods meet all of them; a line for each turn.
int measure_guards(const std::string& out, const std::string& name, int turns);
inline constexpr std::array kGuards = {"none", "watch", "clip"};
/// The same, of steps that survive a rank's death ("on") and steps that do not ("off").
int measure_elastic(const std::string& out, const std::string& name, int turns);

/// A model of 100 MB whose state is taken in one of several ways, in turn; a line for each way, with the steps beside
/// it.
int measure_snapshots(const std::string& out, int turns);

/// What `trireme bench checkpoint` measures of ours: an MLP 784-width-width-10 with momentum, whose checkpoints go to a
/// folder.
struct CheckpointMeasure {
  std::string dir;
  int turns = 3;
  int64_t width = 4608;  // 100 MB of parameters
  int64_t batch = 32;    // samples per worker and step
};
/// A line for each turn: steps without a checkpoint and beside one, then a checkpoint written and loaded while nobody
/// trains, and as many bytes by the bare disk beside that.
int measure_checkpoints(const std::string& out, const CheckpointMeasure& what);

/// What `trireme bench model` measures: a GPT trained with AdamW, divided over the ranks in one way.
struct ModelMeasure {
  int64_t layers = 4, width = 256, heads = 4, context = 128, vocabulary = 256;
  int64_t batch = 16;  // samples of a step, over all ranks
  int steps = 30;      // timed
  int tensor = 1;      // ranks that share each layer
  int zero = 0;
};
int measure_model(const std::string& out, const ModelMeasure& what);

/// What `trireme bench pipeline` measures: a model in stages, one for each rank.
struct PipelineMeasure {
  std::string subject = "gpt";  // gpt, resnet18, wide: large linear layers, or sleep: stages that sleep instead
  std::vector<std::string> schedules = {"1f1b"};
  std::vector<int> micro = {16};  // micro-batches; of bubbles, each of them with each schedule
  double sleep_ms = 5;            // of a stage's forward pass, and of each half of its backward pass
  bool channels_last = false;     // of resnet18
  double clip = 0;                // gradients, by their norm; 0: not
  bool waits = false;             // with clip: no update begins before the norm is known
  ModelMeasure model;             // the GPT; samples and steps of any
};
inline constexpr std::array kPipelineSubjects = {"gpt", "resnet18", "wide", "sleep"};
/// {"ms_per_step": …} with the first schedule and number of micro-batches. The schedule "none" is the ordinary model,
/// whose samples the ranks divide.
int measure_pipeline(const std::string& out, const PipelineMeasure& what);
/// A line for each schedule and number of micro-batches, whose size is the same: share of the time in which stages do
/// not compute ("bubble") and milliseconds of it ("idle_ms"), the share that follows from what each stage's passes took
/// ("simulated"), and activations held at most, by stage ("peak"). Medians over the steps. On one machine.
int measure_bubbles(const std::string& out, const PipelineMeasure& what);

/// Model and samples per worker and step; worker/bench_train.cpp measures them.
inline constexpr std::array kTrainCases = {"lenet-32",   "lenet-128",  "mlp512-32",
                                           "mlp512-128", "mlp2048-32", "mlp2048-128"};

}  // namespace trireme::tools
