#pragma once
// What an exchange keeps between steps: parameters, optimizer state, and the numbers that training goes on with. Shown
// and taken back as parts of named vectors (state/visitor.h), whoever has them: owners() says who. An exchange adds to
// it by the hooks below; what all have in common is in state.cpp.
//
// All calls are between steps. Those that are collective are so among the ranks of the group. Not thread-safe: of the
// thread that trains.
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <trireme/comm/communicator.h>
#include <trireme/compress/codec.h>
#include <trireme/exchange/berth.h>
#include <trireme/exchange/flat.h>
#include <trireme/exchange/options.h>
#include <trireme/exchange/traits.h>
#include <trireme/exchange/work_source.h>
#include <trireme/space/updater.h>
#include <trireme/state/snapshot.h>
#include <trireme/state/visitor.h>

namespace trireme::exchange {

class State : protected Flat {
 public:
  // ---- parameters that somebody has written, or looks at ----

  /// Collective: rank 0's parameters become everybody's.
  virtual void publish() = 0;
  /// Collective: Flat::parameters() are what all ranks agree on, until resume().
  virtual void settle() {}
  virtual void resume() {}
  /// Whoever writes to the parameters other than by steps and the calls here calls this before, on all ranks that have
  /// some of them, and then lets them meet: what snapshots have not read yet is copied.
  void before_writing();

  // ---- all that the job knows ----

  /// Who of the group shows and takes which range of which vector. A pure function of the settings, the same on all
  /// ranks: nobody is asked. Where parameters live on servers, these are the ranks that fetch and bring them.
  virtual state::OwnerMap owners() const;
  /// Collective: this rank's part of all that the job knows, as of the last step, and what training goes on with.
  /// Nothing changes, but that ranks which go at their own pace have the newest parameters afterwards. Not between
  /// settle() and resume(). Nobody goes on before all have shown theirs.
  void visit(state::Visitor& visitor, const state::Extras& extras = {});
  /// Collective: what visit() would show, of which this rank keeps what `division` gives its number; that must be a
  /// part of what owners() does. Reading it is for another thread (state/snapshot.h). Where this rank's updates are
  /// made in this process it takes no longer than it takes to list the parts, and nobody waits for anybody; otherwise
  /// parts are copied first. Throws InvalidArgument for a division that gives it something else.
  std::shared_ptr<state::Snapshot> snapshot(const state::OwnerMap& division, const state::Extras& extras = {});
  /// Collective, with the same model and optimizer; ranks, buckets and sync mode may be others: what owners() gives
  /// this rank comes from `kept`, adapted to this crew (state/adapt.h). All is checked on all ranks before anything is
  /// changed. Throws InvalidArgument that names both sides where a rank's source is of another model or optimizer or
  /// lacks something; Mismatch on the other ranks then. `extras` are shown and taken beside it. Returns what had to be
  /// adapted, as a sentence, or "".
  std::string restore(state::Source& kept, const state::Extras& extras = {});
  /// The value of Options::notes[index], for whoever comes later (kept_state.h). Not collective.
  void note(size_t index, int64_t value) {
    if (berth_) berth_->note(index, value);
  }
  /// Null where servers update the parameters, or the user's own optimizer does.
  const space::Updater* updater() const { return updater_ ? &*updater_ : nullptr; }

 protected:
  State(space::Layout layout, const Options& options, const Traits& traits)
      : Flat(std::move(layout), options.bucket_bytes), options_(options), traits_(traits) {}
  virtual ~State() = default;

  /// Collective, once after it was made: tells whoever comes later what lies where in the segment (kept_state.h).
  void post();
  /// This rank has changed all that it changes in this step, or has begun with parameters that others gave.
  void complete();
  /// Blocks until the last step's parameters are in place: Exchange::land().
  virtual void land() = 0;
  /// A copy of the parameters for each rank of the machine. Collective.
  Vectors own_vectors(int local_rank);

  // ---- the hooks ----

  /// What one rank has of a bucket.
  struct Share {
    space::Range parameters{}, updated{};            // `updated`: it keeps the optimizer's state of that
    bool own_parameters = false, own_state = false;  // and no other rank has the same: see state::of_worker
  };
  virtual Share share_of(int /*rank*/, size_t /*bucket*/) const { return {}; }
  virtual comm::Communicator& group() const = 0;
  /// Whether parameters and optimizer state of this rank change by updates alone, and where before_writing() was
  /// called: then a snapshot needs no copies. Their destructors call it too, while the memory is there.
  virtual bool follows_writes() const { return updater_.has_value() && traits_.lockstep; }
  // With a codec: what it keeps for later is a vector of a machine, or of a worker, by whose number it is known. Its
  // ranks have parts of it.
  static constexpr int kKeepsNothing = -1;
  virtual int keeper_of(int /*rank*/) const { return kKeepsNothing; }
  virtual space::Range kept_of(int /*rank*/, size_t /*bucket*/) const { return {}; }
  /// This rank's; null where it keeps nothing.
  virtual compress::ErrorFeedback* feedback() { return nullptr; }
  void add_kept(state::OwnerMap& map) const;
  void add_kept(std::vector<state::Part>& parts);
  /// Until no rank changes anything any more.
  virtual void come_to_rest() {}
  virtual state::About about() const;
  /// This rank's part of owners() as it lies in memory.
  virtual std::vector<state::Part> parts();
  static constexpr const char *kWorkEpoch = "work/epoch", *kWorkPiece = "work/piece";         // that is given next
  static constexpr const char *kWorkCourse = "work/course", *kWorkFirst = "work/first_step";  // that has begun
  static constexpr const char *kServersVersion = "servers/version", *kServersTurn = "servers/turn";
  struct Scalar {
    std::string name;
    int64_t value = 0;
    std::optional<int64_t> otherwise{};  // what is restored where the source has none; without it, there must be one
  };
  using Scalars = std::vector<Scalar>;
  virtual Scalars scalars();
  /// Where the source of work is: for those whose ranks take theirs.
  Scalars course_scalars() const;
  /// What is neither here in memory nor a scalar.
  virtual void visit_elsewhere(state::Visitor& /*visitor*/) {}

  // In the order in which restore() calls them.

  /// Parameters are about to be restored: copies of what others own are of no more use.
  virtual void forget_gathered() {}
  /// A vector that stays as it is where a source does not have it, or has it for others.
  virtual bool may_lack(const std::string& vector) const { return vector.ends_with(state::kResidual); }
  /// State is written over, until Succession::rewritten().
  virtual void begin_rewriting() {}
  /// All ranks have taken their parts, not yet their scalars.
  virtual void restore_elsewhere(state::Source& /*source*/) {}
  /// In the order of scalars().
  virtual void restore_scalars(const std::vector<int64_t>& values);
  /// A vector or scalar that each rank has of its own, if `own`.
  static std::string named(const std::string& name, bool own, int rank) {
    return own ? state::of_worker(rank, name) : name;
  }

  // Set by the implementation's constructor, and there from then on.
  Options options_;
  Traits traits_;
  std::unique_ptr<WorkSource> source_;
  std::optional<Berth> berth_;  // this model's memory in the segment; empty where servers have it
  std::optional<space::Updater> updater_;
  comm::Communicator* model_ = nullptr;  // Group::model
  int64_t opened_ = 0;                   // steps

 private:
  bool changes_by_update(const state::Part& part) const;
  void visit_rest(state::Visitor& visitor, const state::Extras& extras);
  std::vector<int> keepers() const;
  void check_source(const state::Source& source, const Scalars& scalars, const state::Extras& extras) const;
  bool comes_from(const state::Source& source, const std::string& vector, space::Range range) const {
    return !may_lack(vector) || source.contents().lacking(vector, range, 0).empty();
  }

  std::shared_ptr<space::Originals> last_{};  // of the last snapshot: the next one takes over its memory
};

}  // namespace trireme::exchange
