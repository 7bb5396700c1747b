#pragma once
// A run's policies at work (policy.h): asks them where the run is, has all ranks do what rank 0 decides, says and keeps
// every decision. Owned by the run; used by the thread that trains. Blocks where a call is collective.
#include <functional>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <vector>

#include <trireme/base/clock.h>
#include <trireme/base/error.h>
#include <trireme/cluster/world.h>
#include <trireme/parallel/parallel.h>
#include <trireme/train/options.h>
#include <trireme/train/policy.h>

namespace trireme::train {

class Guard {
 public:
  /// `say`: a line of the log; called on rank 0.
  Guard(World& world, const Options& options, std::function<void(const std::string&)> say);

  /// Training begins, or goes on after `before` seconds of an earlier part of the run.
  void begin(Seconds before = Seconds(0));
  /// Of all parts of the run.
  double seconds() const { return before_.count() + seconds_since(start_); }

  /// After a step of this rank's, when the run is at `position`: asks all to stop when time is up; counts a skipped
  /// update, and throws NotFinite after too many in a row.
  void after_step(Parallel& train, const Step& done, int64_t position);
  /// Collective, when an epoch's figures are there.
  void after_epoch(std::span<const EpochLoss> epochs, int64_t position);
  /// Collective, of a run that has stopped: whether that was decided here, and by no person.
  bool was_stopped_here();
  /// Nothing is to follow.
  bool ended() const { return ended_; }
  /// As others have decided before this rank came.
  void set_ended(bool ended) { ended_ = ended; }

  /// Both are collective. Null: there are no checkpoints.
  struct RollBack {
    std::function<bool()> can;    // there is a checkpoint to go back to, as all ranks hear from one
    std::function<int64_t()> go;  // back to it, after which all have the state of some step: of this one
  };
  void set_roll_back(RollBack roll_back) { roll_back_ = std::move(roll_back); }
  /// Where step() threw `error` for the update that follows `position`, on all ranks alike: with OnNan::rollback the
  /// step that training goes on with, having gone back; the update that had it is passed over from now on. Throws
  /// NotFinite where the policy says so.
  int64_t not_finite(const NotFinite& error, int64_t position);
  /// The run ends with this error: a decision, where a policy is behind it.
  void ends_with(const std::string& error, int64_t position);
  /// No update is to be made for this step, on any rank: it was gone back for.
  bool passes_over(int64_t step) const { return passed_over_.contains(step); }

  const std::vector<Decision>& decisions() const { return decisions_; }

 private:
  void skipped(const Step& done, int64_t position);
  void note(const Decision& decision, bool aloud = true);

  World& world_;
  const StopOptions stop_;
  const NanOptions nan_;
  const WaitLimit step_timeout_;
  std::function<void(const std::string&)> say_;
  Clock::time_point start_ = Clock::now();
  Seconds before_{0};
  bool ended_ = false;
  bool asked_ = false;  // all ranks to stop
  int in_a_row_ = 0;
  int64_t skipped_ = 0, rolled_back_ = 0;
  RollBack roll_back_;
  std::set<int64_t> passed_over_;
  std::vector<Decision> decisions_;  // on rank 0
};

}  // namespace trireme::train
