#pragma once
// Where a rank's work comes from: its own share, or pieces that ranks take as long as there are some.
//
// An epoch's work is a *course*: `steps` steps, each cut into one piece per rank, or into so many pieces as there are
// virtual workers (tree.h). Piece i is a part of the course's step i / pieces. A source gives a rank one piece after
// another, as *leases*; who computes it, and when, is all that it says: the samples are the feed's matter
// (data/loader.h). Not thread-safe; of the thread that trains.
#include <cstdint>
#include <memory>
#include <optional>

#include <trireme/exchange/balance.h>
#include <trireme/exchange/tree.h>
#include <trireme/ps/client.h>

namespace trireme::exchange {

class WorkSource {
 public:
  WorkSource(int rank, int ranks, int micros = 1) : WorkSource(Pieces{rank, rank + 1}, ranks, micros) {}
  WorkSource(Pieces run, int pieces, int micros) : run_(run), pieces_(pieces), micros_(micros) {}
  virtual ~WorkSource() = default;
  WorkSource(const WorkSource&) = delete;
  WorkSource& operator=(const WorkSource&) = delete;

  /// Pieces of a step, over all ranks.
  int pieces() const { return pieces_; }
  /// Those that are cut for this rank, which it gets in this order; where ranks take their work, it may get others.
  virtual Pieces run() const { return run_; }
  /// Micro-batches of a piece.
  int micros() const { return micros_; }
  /// Grows when the crew has changed: what was taken and not done is taken anew, as run() of pieces() that are now,
  /// from step next_step() of the run on. Nothing: the crew never changes.
  virtual std::optional<uint64_t> generation() const { return std::nullopt; }
  virtual int64_t next_step() const { return 0; }
  /// How the samples of a step are divided into pieces, by piece; null: evenly. As long as it is the same object; all
  /// ranks change it before the same step.
  virtual std::shared_ptr<const SampleShares> shares() const { return nullptr; }
  /// A full step of what is to come has so many samples. All ranks say so before the same step.
  virtual void set_batch(size_t /*samples*/) {}

  /// A course of this many steps begins; its first one is step `first_step` of the run. All ranks begin the same
  /// courses in the same order. Does not wait for them: who still has a piece of the course before ends it, and finds
  /// its end.
  virtual void begin(int64_t first_step, int64_t steps);
  /// The next piece for this rank, or that there is none. Blocks where the rules make this rank wait.
  virtual ps::Lease take() = 0;
  /// This rank wants all to stop. Without lockstep they do after the same step, or as soon as they begin one or ask for
  /// work; in lockstep ranks tell it with the step.
  virtual void want_stop() { stop_wanted_ = true; }
  bool stop_wanted() const { return stop_wanted_; }

  struct Course {
    int64_t number = -1;      // from 0, in the order of begin()
    int64_t first_step = -1;  // of the run
    int64_t steps = 0;
  };
  /// That has begun last.
  const Course& course() const { return course_; }
  /// `course` had begun when the state was shown that training goes on with: if the next one begins with the same step,
  /// it is the rest of that one.
  void restore(const Course& course);

 protected:
  void set_pieces(int pieces) { pieces_ = pieces; }
  Course course_;
  bool stop_wanted_ = false;
  Pieces run_;

 private:
  int pieces_, micros_;
  bool restored_ = false;  // course_ was, and may go on
};

/// One piece of every step, or a run of them, which nobody else gets.
class OwnShare final : public WorkSource {
 public:
  using WorkSource::WorkSource;
  void begin(int64_t first_step, int64_t steps) override;
  ps::Lease take() override;
  /// From the next step on.
  void set_run(Pieces run);

 private:
  int64_t next_ = 0;  // step of the course
  int piece_ = 0;     // of that, the next one: how many of the run went before
};

/// Pieces that nobody has, from server 0, who also makes a rank wait that is too far ahead.
class ServersWork final : public WorkSource {
 public:
  explicit ServersWork(ps::Client& client);
  ps::Lease take() override;

 private:
  ps::Client& client_;
};

}  // namespace trireme::exchange
