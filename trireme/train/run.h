#pragma once
// What is behind run(): a run from its options to its result (run.cpp), its epochs (run_epochs.cpp), its checkpoints
// (run_checkpoints.cpp), its model in stages (run_pipeline.cpp) and its samples by speed (run_balance.cpp).
// One thread, on every rank. Not installed.
#include <torch/types.h>

#include <atomic>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include <trireme/data/loader.h>
#include <trireme/data/sampler.h>
#include <trireme/models/model.h>
#include <trireme/parallel/parallel.h>
#include <trireme/parallel/pipeline.h>
#include <trireme/train/checkpoints.h>
#include <trireme/train/guard.h>
#include <trireme/train/history.h>
#include <trireme/train/trainer.h>

namespace trireme::train {

class Run {
 public:
  Run(World& world, const Options& options, const Listener& listener, const std::atomic<bool>& stop);
  Result run();
  /// What there is to say of a run that failed.
  Result so_far();
  /// There is a model, which its workers share.
  bool has_begun() const { return steps_ > 0 && !crew_.empty(); }

 private:
  /// How far an epoch is.
  struct Pace {
    size_t steps = 0;    // done here
    size_t samples = 0;  // of all workers in lockstep, otherwise of this one
    Clock::time_point start = Clock::now(), reported = start;
  };
  struct Leaving {
    Run& run;
    Pace& pace;
    EpochResult& epoch;
    double before;  // seconds, of earlier parts of the epoch
    ~Leaving();
  };
  enum class Patience { until_stopped, to_the_end };
  static constexpr const char* kTrains = "the crew trains";  // newcomers hear of it, and do not come before
  /// They end before what they are of.
  struct Closing {
    std::optional<Checkpoints>& checkpoints;
    ~Closing() { checkpoints.reset(); }
  };

  // ---- from options to a result: run.cpp ----
  Result train();
  void make_mesh();
  Parallel make_parallel(const ParallelOptions& options);
  void collect_metrics(Parallel& train);
  ParallelOptions parallel_options(int64_t steps, bool channels_last) const;
  void introduce();
  void introduce_batch_norm();
  void seed_dropout();
  void introduce_language(const data::Splits& splits);
  void introduce_parts(const Parallel& train);
  void introduce_virtual();
  data::OpenOptions data_options() const;
  void choose_epochs(const data::Splits& splits, int64_t steps);
  std::map<std::string, std::string> metadata(const data::Splits& splits) const;
  std::map<std::string, std::string> settings() const;
  void compare_options();
  void compare_data(const data::Splits& splits);
  std::string servers_text() const;
  std::optional<bool> kept_format();
  bool agree_on_format(const data::Dataset& set);
  bool choose_format(const data::Dataset& set);
  void save(Parallel& train, const data::Splits& splits);
  /// Of the model, each with samples of its own, and the number of this worker's.
  int copies() const { return mesh_ ? mesh_->size("data") : world_.group().size(); }
  /// Parts of a step's batch, each with a pass of its own, but for accumulation and pipelines; likewise of the test
  /// set.
  int pieces() const { return asked().virtual_workers > 0 ? asked().virtual_workers : copies(); }
  int copy() const { return mesh_ ? mesh_->coordinate("data") : world_.group().rank(); }
  /// Workers compute with parameters of others: all of them run the same.
  bool gathers() const { return asked().zero == 3; }
  const exchange::Options& asked() const { return options_.parallel.exchange; }
  bool enough() const { return options_.most_steps() > 0 && position_ >= options_.most_steps(); }

  // ---- epochs: run_epochs.cpp ----
  void run_epochs(Parallel& train, data::Feed& feed, const data::Splits& splits);
  void end_epoch(Parallel& train, const data::Splits& splits);
  void run_epoch(Parallel& train, data::Feed& feed, int number);
  void pass_over(Parallel& train, const data::Feed& feed, const data::Batch& batch);
  int64_t reached(const Parallel& train, const data::Epoch& batches, int64_t first);
  Step step(Parallel& train, const data::Batch& batch);
  void stepped(const Step& done, EpochResult& epoch, Pace& pace, size_t steps, size_t position);
  void meet(Parallel& train, EpochResult& epoch, Pace& pace);
  void add_up(EpochResult& epoch, Pace& pace);
  void time_step(const Step& done, const data::Batch& batch, double seconds);
  void set_progress(const EpochResult& epoch, size_t step, size_t steps, double seconds);
  void evaluate_stopped(Parallel& train, const data::Dataset& test);
  void evaluate(Parallel& train, const data::Dataset& test, Patience patience);
  bool stops_evaluating(Patience patience, size_t batch);
  std::vector<EpochLoss> losses() const;
  void examine(size_t classes, bool ended);

  // ---- a crew that changes: run_crew.cpp ----
  void through_changes(Parallel& train, const std::function<void()>& part);
  void follow(Parallel& train, const Step& change);
  void leave_epoch();
  void join_in(Parallel& train);
  void settle(Parallel& train);
  void adopt_settled(const Parallel& train);
  void audit(const Parallel& train, const data::Dataset& set, EpochResult& epoch);

  // ---- samples by speed: run_balance.cpp ----
  void tell_of_balance(const Parallel& train);

  // ---- a model in stages: run_pipeline.cpp ----
  void make_pipeline(const data::Cut& batches, const data::Dataset& set);
  void check_sizes_of_batches(const data::Cut& batches, const stages::ScheduleSpec& spec, int micro) const;
  layers::Cut measured_cut(const data::Dataset& set, int parts, int micro);
  void describe_stages(const layers::Cut& cut);
  void share_weights();
  void introduce_stages();
  void record_schedule();
  /// Of the model, whoever has its parts; undefined on ranks of a stage that is not the last.
  torch::Tensor output_of(const torch::Tensor& x);
  bool counts_results() const;

  // ---- checkpoints: run_checkpoints.cpp ----
  void take_weights();
  std::string best_figure(const data::Splits& splits) const;
  void keep_checkpoints(Parallel& train, data::Feed& feed, const data::Splits& splits, bool channels_last, bool joins);
  void take_up(const Loaded& loaded);
  bool owes_evaluation(const data::Splits& splits, int64_t steps) const;
  void describe(SaveNote& note) const;
  std::map<std::string, double> figures() const;
  void tell_of_checkpoints();
  void keep_last();
  void finish_checkpoints();
  void finish(Parallel& train, const data::Splits& splits);

  World& world_;
  const Options& options_;
  const Listener& listener_;
  const std::atomic<bool>& stop_;
  TrainMetrics count_;
  Guard guard_;
  torch::Dtype dtype_;
  std::optional<Mesh> mesh_;  // where workers divide the model
  models::Model net_;
  std::optional<Pipeline> pipe_;  // where workers have stages of it
  std::string stages_text_;       // which
  bool mse_ = false;
  int epochs_ = 0;
  double loss_unit_ = 1;        // what a loss of 1 means in the unit of the label, squared
  History history_;             // of what was before, and of the epoch that is under way
  const Pace* pace_ = nullptr;  // of the epoch that is under way
  size_t stopped_steps_ = 0;    // of an epoch that was left in the middle
  std::optional<Checkpoints> checkpoints_;
  std::optional<Deadline> last_;  // for the last one
  int64_t position_ = 0;          // steps of the run that are done; within an epoch, as far as this worker knows
  int64_t all_updates_ = 0;       // where workers go their own ways: of all of them
  int64_t steps_ = 0;             // of an epoch
  int64_t settled_ = 0;           // epochs that were trained, evaluated and saved
  bool owes_end_ = false;         // of the next one, only the first is done
  std::vector<int> crew_;         // ranks
  int timed_ = 0;                 // steps, as far as kStepsToTime
  double usual_ = 0;              // seconds of a sample in the quickest of them
  size_t samples_ = 0;            // of the update that is under way
  int64_t told_changes_ = 0, told_stragglers_ = 0;  // of the balance, so far
  bool warned_ = false;
  Result result_;
};

}  // namespace trireme::train
