#pragma once
// How gradients become new parameters. Each way of synchronising is one small implementation.
#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <trireme/cluster/world.h>
#include <trireme/comm/network/communicator.h>
#include <trireme/comm/shm/communicator.h>
#include <trireme/compress/codec.h>
#include <trireme/exchange/balancer.h>
#include <trireme/exchange/berth.h>
#include <trireme/exchange/compression.h>
#include <trireme/exchange/options.h>
#include <trireme/exchange/traits.h>
#include <trireme/exchange/transaction.h>
#include <trireme/exchange/tree.h>
#include <trireme/exchange/work_source.h>
#include <trireme/ps/client.h>
#include <trireme/space/layout.h>
#include <trireme/space/updater.h>
#include <trireme/state/snapshot.h>
#include <trireme/state/visitor.h>

namespace trireme::exchange {

/// Who trains together. A *lane* joins one rank of every machine; there are as many lanes as the machine with the
/// fewest ranks has ranks.
struct Group {
  comm::Communicator& all;
  comm::shm::Communicator& local;  // the ranks of this machine
  comm::network::Communicator* lane =
      nullptr;  // this rank's, machine by machine; null with one machine, and for a rank beyond the number of lanes
  int lanes = 1;
  World* world = nullptr;               // where the parameter servers are found; null: there are none
  comm::Communicator* model = nullptr;  // of this rank and those that have the other parts of its replica of the model
                                        // (space::Slot::cut), each in a group like this one; null: it has all of it
  std::function<comm::network::Communicator*()>
      second_lane{};  // another one among the ranks of `lane`, made when it is asked for: with Options::zero

  Group(comm::Communicator& all, comm::shm::Communicator& local, comm::network::Communicator* lane, int lanes)
      : all(all), local(local), lane(lane), lanes(lanes) {}
  /// Its communicators, which it outlives.
  explicit Group(const trireme::Group& group) : Group(group.comm(), group.local(), group.lane(), group.lanes()) {
    second_lane = [group] { return group.second_lane(); };
  }
  /// One machine.
  Group(comm::shm::Communicator& local)
      : all(local), local(local), lanes(local.size()) {}  // NOLINT: a machine's ranks are a group
  bool one_machine() const { return all.size() == local.size(); }
};

/// Numbers that travel with a step: its loss, whether a rank wants to stop, two signs (terms.h), whether one has heard
/// of another crew, which samples it had (Ledger), and how long it computes (Balancer).
using Told = std::array<double, 14>;

constexpr size_t kToldSamples = 9;  // their number, then the sum of their signs
constexpr size_t kToldStint = 11;
inline std::span<double, Balancer::kTold> told_of_stint(Told& told) {
  return std::span<double, Balancer::kTold>(told.data() + kToldStint, Balancer::kTold);
}

/// A forward pass, with or without its backward pass: those of one kind use the same parameters in the same order.
enum class Pass : uint8_t {
  micro,  // a micro-batch that adds to the gradients
  last,   // the one whose gradients become ready
  look    // nothing is trained
};

/// Not thread-safe. One step is
///   begin()      may block where the rules make this rank wait
///   …            the forward pass: await() parameters of the step before that are still on their way
///   open()       gradients will come now: write them to gradients(), and present() their slots
///   ready()      for each bucket in order
///   close()      told() is known
///   land()       all parameters are in place; or later, in the next open()
/// Gradients are summed over ranks: whoever wants a mean weights them before. What an exchange *is* say its traits();
/// where the work comes from, its source().
class Exchange {
 public:
  virtual ~Exchange() = default;

  // ---- the verbs ----

  /// False, and nothing has begun, when the ranks have agreed to stop. `leased` is the step of the piece that source()
  /// gave for it; otherwise it is this rank's next one.
  bool begin(double lr, std::optional<int64_t> leased = {});
  /// Blocks until the step before has landed.
  virtual void open();
  /// This rank's gradient of a slot is in place. Slots that no rank has a gradient for are left as they are, as
  /// libtorch does.
  void present(size_t slot, int seat = 0) { flags(seat)[slot] = 1; }
  /// It is not, or not any more: the seat was folded into another.
  void absent(size_t slot, int seat) { flags(seat)[slot] = 0; }
  /// All gradients of a bucket are in place, or will not come. Buckets become ready in the order of buckets(); may do
  /// work, does not wait. From now on the bucket's parameters may change.
  virtual void ready(size_t bucket) = 0;
  /// All buckets are ready. Blocks until told() is valid.
  virtual void close() = 0;
  /// Before close(), where this rank would wait for others until `enough`: updates what may be updated by then, see
  /// Options::ahead. Does not wait.
  virtual void go_ahead(const std::function<bool()>& /*enough*/) {}
  /// After close(): blocks until this step's parameters in a part of the flat vector are in place on this rank and may
  /// be used.
  virtual void await(space::Range /*part*/) {}
  /// After close(): blocks until all of them are. Does nothing when they have landed().
  virtual void land() {}

  // Where traits().gathers; elsewhere they do what await() does, or nothing.

  /// A pass begins, on all ranks alike.
  virtual void begin_pass(Pass /*pass*/) {}
  /// Blocks until these parts of the flat vector may be read; they stay until release(). Uses may contain others, as
  /// operators call operators. All ranks use the same in the same order: who does not is a Mismatch.
  virtual void use(std::span<const space::Range> parts) {
    for (const space::Range& part : parts) await(part);
  }
  /// Ends the use that began last.
  virtual void release() {}
  /// For a rank without samples: uses what the last pass of this kind has used, as the other ranks do now, and calls
  /// `open` and `ready` where that called open() and ready(). Throws InvalidArgument when there was none yet.
  virtual void replay(const std::function<void()>& /*open*/, const std::function<void()>& /*ready*/) {}

  /// Collective, before publish(): rank 0 has all parameters of this bucket. Where a machine keeps parts only, they are
  /// brought to their owners, and the others' memory is given back: so no machine ever has all buckets.
  virtual void publish_bucket(size_t /*bucket*/) {}
  /// Collective: rank 0's parameters become everybody's.
  virtual void publish() = 0;
  /// Collective, between steps: parameters() are what all ranks agree on, until resume().
  virtual void settle() {}
  virtual void resume() {}

  // ---- virtual workers (tree.h): with Options::virtual_workers ----

  /// By rank, the pieces of a step that it computes: in their order, each with a gradient of its own, which goes to the
  /// seat that turn_of() says. By ready() of a bucket, seats have the sums of the run's roots. Empty without any.
  const std::vector<Pieces>& runs() const { return runs_; }
  /// Between steps, on all ranks alike: another division, for as many ranks. Throws InvalidArgument when it is none.
  virtual void divide(const std::vector<Pieces>& runs);
  /// The loss of one of this rank's pieces, times its weight, before the last bucket's ready(): told()[0] is the sum
  /// over all pieces, in the tree.
  void tell_piece(int piece, double loss) { losses_[static_cast<size_t>(piece)] = loss; }

  // ---- what it is, and has ----

  const Traits& traits() const { return traits_; }
  /// Where this rank's pieces of work come from.
  WorkSource& source() const { return *source_; }
  const space::Layout& layout() const { return layout_; }
  const std::vector<space::Bucket>& buckets() const { return buckets_; }
  /// Null when the user keeps an optimizer: then close() leaves the summed gradients in gradients().
  const space::Updater* updater() const { return updater_ ? &*updater_ : nullptr; }
  /// The flat vectors. All slots of the layout are views of these.
  std::byte* parameters() const { return flat_.parameters; }
  std::byte* gradients() const { return flat_.gradients; }
  /// Where sums over this rank's pieces stand; seat 0 is the one above.
  std::byte* gradients(int seat) const {
    return seat == 0 ? flat_.gradients : flat_.seats + static_cast<size_t>(seat - 1) * seat_bytes();
  }
  int seats() const { return flat_.count; }

  // ---- what a step came to ----

  bool landed() const { return landed_; }
  /// After land(): false when the step had a gradient that was NaN or infinite, unless OnNan::ignore. In lockstep all
  /// ranks get the same answer. Parameters and state have nothing of it: with Options::clip or OnNan::skip they are as
  /// before the step, otherwise the blocks of space::kBlock elements that had it are, while others were updated.
  bool sound() const { return sound_; }
  /// After land(), of the step: something was updated before the norm was known; and it was wrong, and taken back.
  bool went_ahead() const { return went_ahead_; }
  bool taken_back() const { return taken_back_; }
  /// A gradient that is not finite.
  struct Flaw {
    size_t slot;
    bool own;  // of this rank; otherwise it was found in the sum over ranks, and whose it is was not kept
  };
  /// Until the next open(): the first that this rank has, in the order of the backward pass. Slow.
  std::optional<Flaw> flaw() const;
  /// After land() of an exchange without optimizer: whether any rank had a gradient for the slot.
  bool was_present(size_t slot) const { return flat_.present[slot] != 0; }

  /// Without lockstep: this rank wants all to stop. They do after the same step, or as soon as they begin one or ask
  /// for work.
  void want_stop();
  bool stopped() const { return stopped_; }
  /// A few numbers of this rank's, before the last bucket's ready().
  void tell(const Told& numbers) { mine_ = numbers; }
  /// After close(): their sums over all ranks, the same bits everywhere; null if this exchange does not carry them.
  const Told* told() const { return traits_.tells ? &told_ : nullptr; }

  // ---- a crew that changes: with Options::elastic ----

  /// Before close(): where the run is when the step that is under way is done, but for the optimizer's steps and what
  /// the step's ranks tell.
  void aim(const Reached& reached) { aim_ = reached; }
  /// After restore(): where the run is now, but for the optimizer's steps.
  virtual void rewritten(const Reached& /*now*/) {}
  /// Nothing of this crew's will change any more. Where it was in the end.
  virtual Reached give_up() { return {}; }
  /// Where the crew is.
  virtual Reached reached() const { return {}; }
  /// Collective, of a new exchange, instead of publish(): goes on with the state of the crew before. `before`: its
  /// exchange of this rank, which was given up; null: this rank comes anew. Returns where that was. From then on this
  /// crew's memory is what the next one goes on with.
  virtual Reached take_over(Exchange* before, const Reached& reached);

  /// With Options::candidates, several machines: what was chosen. Null: nothing is to choose.
  virtual const Compression* compression() const { return nullptr; }
  /// What each parameter server has counted, by its number; nothing without servers.
  virtual std::vector<metrics::Snapshot> counted_by_servers() { return {}; }
  /// How long waits for servers may take from now on; null: as long as at first. Those for ranks are their group's.
  virtual void limit_waits(const WaitLimit* limit) {
    if (client() != nullptr) client()->limit_waits(limit);
  }
  /// This rank's way to the servers; null without any.
  virtual ps::Client* client() { return nullptr; }
  /// The value of Options::notes[index], for whoever comes later.
  void note(size_t index, int64_t value) {
    if (berth_) berth_->note(index, value);
  }

 protected:
  Exchange(space::Layout layout, const Options& options, const Traits& traits);
  /// The part of begin() that is an implementation's own.
  virtual bool begin_step(std::optional<int64_t> /*leased*/) { return true; }
  /// By the end of a step, this part of gradients() has sums over ranks.
  virtual space::Range summed(size_t /*bucket*/) const { return {}; }

  /// One byte per slot: this rank has a gradient for it.
  uint8_t* flags(int seat = 0) const { return flat_.present + static_cast<size_t>(seat) * layout_.size(); }
  size_t seat_bytes() const { return round_up(layout_.bytes(), space::kLine); }
  /// The whole of each bucket, for an updater that has all of its state here.
  std::vector<space::Range> bucket_ranges() const;
  /// Updates the parameters of all slots that flags() has, with the gradients as they stand here.
  void update_all();
  void update(size_t bucket, space::Range range, std::span<const space::Source> sources);
  /// This rank has changed all that it changes in this step, or has begun with parameters that others gave.
  void complete();
  /// That this exchange has opened.
  int64_t steps() const { return opened_; }
  bool watches() const { return options_.on_nan != OnNan::ignore; }
  bool whole_first() const { return exchange::whole_first(options_); }
  /// Scales the gradients of all slots that flags() has: here and now, or in the updates that follow. `squares` are of
  /// this group's part of the model: those of the others are added. False when they must not be applied: their sum of
  /// squares is not finite, and the step is not sound.
  bool clip_by(double squares);
  /// The same by the gradients as they stand here.
  bool clip_here();
  using OfBucket = std::function<void(size_t bucket)>;
  /// The same, and calls `update` for every bucket unless nothing is to be applied, ahead if it may; in any case
  /// `settled` for each when its parameters are as they will be.
  void clip_and_update(double squares, const OfBucket& update, const OfBucket& settled);
  /// Updates the next buckets before `end` by a guess, until `known`. `squares`: what is known of the norm.
  void update_ahead(double squares, size_t end, const OfBucket& update, const std::function<bool()>& known);
  /// What is not finite in a part of a summed gradient that will be given back: flaw() still knows it then.
  void look_at_sum(size_t bucket, space::Range part);
  /// Whether gradients() are there until the next open().
  virtual bool keeps_gradients() const { return true; }
  /// Nothing of this rank's gradient is applied, wherever it goes; flaw() still knows what was wrong with it.
  void leave_all_out();
  /// Before they are summed: remembers flaws of small tensors, so that they can be told from other ranks'. Large ones
  /// would cost a pass over memory.
  void look(size_t bucket, space::Range part);

  /// Set by the implementation's constructor, like source_, and the same from then on.
  struct Flat {
    std::byte *parameters = nullptr, *gradients = nullptr;
    uint8_t* present = nullptr;  // of seat 0, then of the others
    std::byte* seats = nullptr;  // of gradients: those after seat 0, one behind another
    int count = 1;               // seats
  };
  space::Layout layout_;
  Options options_;
  Traits traits_;
  Flat flat_;
  /// A copy of the parameters for each rank of the machine. Collective.
  Flat own_flat(int local_rank);
  std::unique_ptr<WorkSource> source_;
  double lr_ = 0;
  Told mine_{}, told_{};
  std::vector<Pieces> runs_;    // by rank of the group
  std::vector<double> losses_;  // by piece: this rank's
  std::vector<space::Bucket> buckets_;
  std::optional<Berth> berth_;  // this model's memory in the segment; empty where servers have it
  std::optional<space::Updater> updater_;
  bool stop_wanted_ = false, stopped_ = false;
  bool landed_ = true, sound_ = true;
  Reached aim_;

 private:
  friend std::unique_ptr<Exchange> make_exchange(const Group&, const space::Layout&,
                                                 const std::optional<space::UpdaterOptions>&, const Options&);
  bool finite(size_t slot, space::Range part) const;
  double of_all_parts(double squares) const;
  std::optional<double> factor_by(double squares);
  bool may_guess(double squares) const;
  comm::Communicator* model_ = nullptr;  // Group::model
  int64_t opened_ = 0;                   // steps
  size_t ahead_ = 0;                     // buckets of this step that were updated by a guess
  bool went_ahead_ = false, taken_back_ = false;
  bool would_hold_ = true;                    // whether the guess was right in the step before, or would have been
  std::optional<size_t> seen_;                // by look(): a slot with a flaw of this rank's
  std::optional<size_t> seen_in_sum_;         // by look_at_sum()
  std::shared_ptr<space::Originals> last_{};  // of the last snapshot: the next one takes over its memory

 public:
  // State: see state/visitor.h. In exchange/state.cpp.

  /// Who of the group shows and takes which range of which vector. A pure function of the settings, the same on all
  /// ranks: nobody is asked. Where parameters live on servers, these are the ranks that fetch and bring them.
  virtual state::OwnerMap owners() const;
  /// Collective, once after it was made: tells whoever comes later what lies where in the segment (kept_state.h).
  void post();
  /// Collective, between steps: this rank's part of all that the job knows, as of the last step, and what training goes
  /// on with. Nothing changes, but that ranks which go at their own pace have the newest parameters afterwards. Not
  /// between settle() and resume(). Nobody goes on before all have shown theirs.
  void visit(state::Visitor& visitor, const state::Extras& extras = {});
  /// Collective, between steps: what visit() would show, of which this rank keeps what `division` gives its number;
  /// that must be a part of what owners() does. Reading it is for another thread (state/snapshot.h). Where this rank's
  /// updates are made in this process it takes no longer than it takes to list the parts, and nobody waits for anybody;
  /// otherwise parts are copied first. Throws InvalidArgument for a division that gives it something else.
  std::shared_ptr<state::Snapshot> snapshot(const state::OwnerMap& division, const state::Extras& extras = {});
  /// Whoever writes to parameters() other than by steps and the verbs here calls this before, on all ranks that have
  /// some of them, and then lets them meet: what snapshots have not read yet is copied.
  void before_writing();
  /// Collective, between steps, with the same model and optimizer; ranks, buckets and sync mode may be others: what
  /// owners() gives this rank comes from `kept`, adapted to this crew (state/adapt.h). All is checked on all ranks
  /// before anything is changed. Throws InvalidArgument that names both sides where a rank's source is of another model
  /// or optimizer or lacks something; Mismatch on the other ranks then. `extras` are shown and taken beside it. Returns
  /// what had to be adapted, as a sentence, or "".
  std::string restore(state::Source& kept, const state::Extras& extras = {});

 protected:
  /// What one rank has of a bucket.
  struct Share {
    space::Range parameters{}, updated{};            // `updated`: it keeps the optimizer's state of that
    bool own_parameters = false, own_state = false;  // and no other rank has the same: see state::of_worker
  };
  virtual Share share_of(int /*rank*/, size_t /*bucket*/) const { return {}; }
  virtual comm::Communicator& group() const = 0;
  /// Whether parameters and optimizer state of this rank change by update() alone, and where before_writing() was
  /// called: then a snapshot needs no copies. Their destructors call it too, while the memory is there.
  virtual bool follows_writes() const { return updater_.has_value() && traits_.lockstep; }
  bool changes_by_update(const state::Part& part) const;
  void visit_rest(state::Visitor& visitor, const state::Extras& extras);
  // With a codec: what it keeps for later is a vector of a machine, or of a worker, by whose number it is known. Its
  // ranks have parts of it.
  static constexpr int kKeepsNothing = -1;
  virtual int keeper_of(int /*rank*/) const { return kKeepsNothing; }
  virtual space::Range kept_of(int /*rank*/, size_t /*bucket*/) const { return {}; }
  /// This rank's; null where it keeps nothing.
  virtual compress::ErrorFeedback* feedback() { return nullptr; }
  std::vector<int> keepers() const;
  void add_kept(state::OwnerMap& map) const;
  void add_kept(std::vector<state::Part>& parts);
  /// Until no rank changes anything any more.
  virtual void come_to_rest() {}
  /// State is written over, until rewritten().
  virtual void begin_rewriting() {}
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
  /// Where source() is: for those whose ranks take their work.
  Scalars course_scalars() const;
  /// In the order of scalars().
  virtual void restore_scalars(const std::vector<int64_t>& values);
  /// What is neither here in memory nor a scalar.
  virtual void visit_elsewhere(state::Visitor& /*visitor*/) {}
  /// A vector that stays as it is where a source does not have it, or has it for others.
  virtual bool may_lack(const std::string& vector) const { return vector.ends_with(state::kResidual); }
  /// Parameters are about to be restored: copies of what others own are of no more use.
  virtual void forget_gathered() {}
  /// All ranks have taken their parts, not yet their scalars.
  virtual void restore_elsewhere(state::Source& /*source*/) {}
  void check_source(const state::Source& source, const Scalars& scalars, const state::Extras& extras) const;
  bool comes_from(const state::Source& source, const std::string& vector, space::Range range) const {
    return !may_lack(vector) || source.contents().lacking(vector, range, 0).empty();
  }
  /// A vector or scalar that each rank has of its own, if `own`.
  static std::string named(const std::string& name, bool own, int rank) {
    return own ? state::of_worker(rank, name) : name;
  }
};

/// Collective. Throws Mismatch that names the first parameter or setting in which ranks differ. Without an optimizer,
/// `sync` must be allreduce.
std::unique_ptr<Exchange> make_exchange(const Group& group, const space::Layout& layout,
                                        const std::optional<space::UpdaterOptions>& optimizer, const Options& options);

}  // namespace trireme::exchange
