#pragma once
// Checkpoints in an ordinary loop, in every mode:
//
//   data::Feed feed(train, sets.train, {.batch = 64});
//   Checkpoints checkpoints(train, feed, {.dir = "out/run", .every = {.epochs = 10}, .keep = 3});
//   checkpoints.resume();                                        // if there is something to go on with
//   for (int64_t e = checkpoints.epoch(); e < 200; e++) {
//     for (auto& batch : feed.epoch(e)) train.step(batch, …);    // saved in the middle, if it is due there
//     checkpoints.epoch_ended(e, {{"test_accuracy", …}});
//   }
//
// A checkpoint is of the state between two steps, with the place in the data: who resumes gets the very next batch.
// Training goes on while it is written.
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <trireme/data/loader.h>
#include <trireme/parallel/saver.h>
#include <trireme/train/every.h>

namespace trireme {

struct CheckpointsOptions {
  std::string dir;
  Every every;                                    // how often
  int keep = 3;                                   // the newest; 0: all
  std::string keep_best{};                        // and the best by this metric, such as "test_accuracy"; "": none.
                                                  // With it, an epoch that is the best so far is saved
  bool higher_is_better = true;                   // of that metric
  std::map<std::string, std::string> metadata{};  // of the model: kept with its tensors
  std::map<std::string, std::string> options{};   // of the job
  std::function<void(SaveNote&)> describe{};      // adds to what a checkpoint says, on all ranks alike, when it is made
  Seconds limit{300};                             // for one checkpoint
};

/// Where a run goes on.
struct Place {
  int64_t epoch = 0;
  size_t step = 0;  // steps of it that are done
};

/// Collective: as load_state() does, and the feed goes on behind the last batch that was trained. Throws, before
/// anything has changed, when the place in the data means nothing here (another batch, or another seed in the middle of
/// an epoch).
Loaded go_on_from(Parallel& train, data::Feed& feed, const std::string& from, Place& place);

/// Collective, as the loop is. The first epoch throws InvalidArgument when the folder has checkpoints of later steps
/// than the run begins with, unless resume() has gone on with the folder's newest. Outlived by the Parallel and the
/// Feed; while it lives, ranks meet as it says.
class Checkpoints final : public data::Meetings {
 public:
  Checkpoints(Parallel& train, data::Feed& feed, const CheckpointsOptions& options);
  ~Checkpoints() override;

  /// Goes on with the newest checkpoint of the folder, if there is any; false: nothing there.
  bool resume();
  /// Goes on with the newest usable checkpoint of a folder, or with this one. Throws when there is none, when it is of
  /// another model or optimizer, and when its place in the data means nothing here (another batch or seed in the middle
  /// of an epoch).
  Loaded resume(const std::string& from);

  /// The epoch to go on with: 0 in a new run.
  int64_t epoch() const { return place_.epoch; }
  /// Steps of that epoch that are done.
  size_t epoch_step() const { return place_.step; }

  /// An epoch was trained to its end: saved, if it is due.
  void epoch_ended(int64_t epoch, const std::map<std::string, double>& metrics = {});
  /// An epoch was left in the middle, because somebody has stopped: where ranks are is saved now. Ask for the result
  /// with finish().
  void save_stopped(const data::Epoch& epoch);
  /// Saved now, after so many steps of the run, unless that was saved already, or the one before is still being written
  /// when `limit` (or CheckpointsOptions::limit) has passed.
  void save_at(int64_t done, const std::map<std::string, double>& metrics = {},
               std::optional<Seconds> limit = std::nullopt);
  /// Waits for what is under way on all ranks: false when it takes longer than this. Who cannot write is heard of here,
  /// also where not even that could be written.
  bool settle(Seconds limit);
  /// Waits for what is under way here: false when it takes longer than this, or the last one could not be written. Not
  /// collective.
  bool finish(Seconds limit);
  /// Whether the folder has a complete one, as rank 0 sees it. Waits for what is under way.
  bool any();
  /// There is no more time for what is under way. Nothing is saved afterwards. Not collective.
  void give_up();

  /// This rank still writes.
  bool busy() const { return saver_ && saver_->busy(); }
  /// On rank 0, of what was saved since the last call; elsewhere nothing.
  std::vector<Saved> news();
  /// The last one that is known to be complete, on rank 0; "": none.
  const std::string& newest() const { return newest_; }
  std::vector<std::string> remarks() const { return saver_ ? saver_->remarks() : std::vector<std::string>(); }

  int64_t until_next(int64_t done) override;
  void meet(int64_t done) override;

 private:
  void follow_crew();
  bool has(bool complete);
  void save(int64_t epoch, size_t step, const std::map<std::string, double>& metrics,
            std::optional<Seconds> limit = std::nullopt);
  int64_t decide(int64_t mine, const char* what);
  bool best_so_far(const std::map<std::string, double>& metrics);
  void hear();
  void refuse_another_run(int64_t done);

  Parallel& train_;
  data::Feed& feed_;
  CheckpointsOptions options_;
  std::unique_ptr<Saver> saver_;  // of the crew that is now: made anew by the first collective call after a change
  std::vector<std::unique_ptr<Saver>> leaving_;
  std::optional<uint64_t> crew_;  // its epoch
  Place place_;
  // Of the clock, on rank 0.
  Clock::time_point saved_ = Clock::now(), asked_ = saved_;
  int64_t asked_at_ = -1, saved_step_ = -1;
  double step_seconds_ = 0;
  bool folder_is_ours_ = false;
  std::optional<double> best_;
  std::string newest_, failed_;
  std::vector<Saved> news_;
};

}  // namespace trireme
