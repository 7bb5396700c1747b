#pragma once
// How gradients become new parameters. Each way of synchronising is one small implementation.
#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <trireme/cluster/world.h>
#include <trireme/comm/network/communicator.h>
#include <trireme/comm/shm/communicator.h>
#include <trireme/exchange/on_nan.h>
#include <trireme/exchange/sync.h>
#include <trireme/exchange/terms.h>
#include <trireme/ps/client.h>
#include <trireme/space/layout.h>
#include <trireme/space/updater.h>
#include <trireme/state/visitor.h>

namespace trireme::exchange {

struct Options {
  Sync sync = Sync::shared;
  size_t bucket_bytes = 1 << 20;  // gradients travel in buckets of about this size
  bool overlap = true;            // work on complete buckets while the backward pass goes on
  double clip = 0;  // norm above which a gradient is scaled down; 0: none. In lockstep the norm of the step's
                    // gradient, so that no update begins before all of it is there; otherwise of each rank's own
  OnNan on_nan = OnNan::stop;   // stop: look for NaN and infinity in gradients, see sound()
  bool backward_waits = false;  // ranks wait for one another in the middle of a backward pass: nobody in ready() may
                                // need them. Where that cannot be had, the buckets stay until close()
  Rate rate = Rate::share;      // what one gradient counts where they are applied one by one: how staleness is weighed;
                                // begin() has the rate itself
  Terms terms{};                // of the caller's: what ranks must agree on besides

  // With parameter servers.
  size_t chunk_bytes = 1 << 20;                    // the largest part of a bucket that one server keeps
  ps::Stale stale = ps::Stale::full;               // what a gradient is worth that was computed with old parameters
  double lambda = 0.04;                            // of Stale::compensated
  uint64_t seed = 1;                               // trylock: of the workers' luck
  std::vector<ps::SparseTable::Options> tables{};  // rows by key, beside the model's parameters: see client()
};

/// Who trains together. A *lane* joins one rank of every machine; there are as many lanes as the machine with the
/// fewest ranks has ranks.
struct Group {
  comm::Communicator& all;
  comm::shm::Communicator& local;  // the ranks of this machine
  comm::network::Communicator* lane =
      nullptr;  // this rank's, machine by machine; null with one machine, and for a rank beyond the number of lanes
  int lanes = 1;
  World* world = nullptr;  // where the parameter servers are found; null: there are none

  Group(comm::Communicator& all, comm::shm::Communicator& local, comm::network::Communicator* lane, int lanes)
      : all(all), local(local), lane(lane), lanes(lanes) {}
  /// Its communicators, which it outlives.
  explicit Group(const trireme::Group& group) : Group(group.comm(), group.local(), group.lane(), group.lanes()) {}
  /// One machine.
  Group(comm::shm::Communicator& local)
      : all(local), local(local), lanes(local.size()) {}  // NOLINT: a machine's ranks are a group
  bool one_machine() const { return all.size() == local.size(); }
};

/// Numbers that travel with a step: its loss, whether a rank wants to stop, and two signs (terms.h).
using Told = std::array<double, 8>;

/// One step: begin(), forward pass, open(), then for every slot with a gradient write it to gradients() and call
/// present(), ready() for each bucket in order, finish(). Or close() in the place of finish(): then parameters may
/// still be on their way during the next forward pass, which has to await() them. Gradients are summed over ranks:
/// whoever wants a mean weights them before. Not thread-safe.
class Exchange {
 public:
  virtual ~Exchange() = default;

  /// The flat vectors. All slots of the layout are views of these.
  virtual std::byte* parameters() const = 0;
  virtual std::byte* gradients() const = 0;
  /// Collective: rank 0's parameters become everybody's.
  virtual void publish_parameters() = 0;
  /// True when all ranks of a machine look at the same memory: one rank writes, and publish_parameters() carries it to
  /// the other machines.
  virtual bool parameters_are_shared() const = 0;

  /// False, and nothing has begun, when the ranks have agreed to stop. May block where the consistency rules make this
  /// rank wait.
  bool begin(double lr);
  /// Gradients will come now. Blocks until the step before has landed.
  virtual void open();
  /// This rank's gradient of a slot is in place. Slots that no rank has a gradient for are left as they are, as
  /// libtorch does.
  void present(size_t slot) { flags()[slot] = 1; }
  /// All gradients of a bucket are in place, or will not come. Buckets become ready in the order of buckets(); may do
  /// work, does not wait. From now on the bucket's parameters may change.
  virtual void ready(size_t bucket) = 0;
  /// Whether they change only when all ranks of the machine have come to the next bucket's ready(), so that a backward
  /// pass may use them a little longer. The last bucket's is to come after the backward pass then.
  virtual bool patient() const { return false; }
  /// All buckets are ready. Blocks until told() is valid.
  virtual void close() = 0;
  /// After close(): blocks until this step's parameters in a part of the flat vector are in place on this rank and may
  /// be used.
  virtual void await(space::Range /*part*/) {}
  /// After close(): blocks until all of them are. Does nothing when they have landed().
  virtual void land() {}
  virtual bool landed() const { return true; }
  void finish() {
    close();
    land();
  }

  /// After land(): false when the step had a gradient that was NaN or infinite, unless OnNan::ignore. In lockstep all
  /// ranks get the same answer. Parameters and state have nothing of it: with Options::clip they are as before the
  /// step, otherwise the blocks of space::kBlock elements that had it are, while others were updated.
  bool sound() const { return sound_; }
  /// A gradient that is not finite.
  struct Flaw {
    size_t slot;
    bool own;  // of this rank; otherwise it was found in the sum over ranks, and whose it is was not kept
  };
  /// Until the next open(): the first that this rank has, in the order of the backward pass. Slow.
  std::optional<Flaw> flaw() const;

  /// Whether a step is one update of all ranks together. Otherwise each rank trains on its own, with gradients that are
  /// means over its own samples, and only the functions below are collective.
  virtual bool lockstep() const { return true; }
  /// Whether ranks ask for their work with take(), so that fast ones do more; otherwise every rank does its share.
  virtual bool gives_work() const { return false; }
  /// The next piece of the epoch's work that nobody has: its step is then the one that begins next.
  virtual ps::Work take(int64_t epoch, int64_t first_step, int64_t pieces);
  /// Collective, between steps: parameters() are what all ranks agree on, until resume().
  virtual void settle() {}
  virtual void resume() {}
  /// The parameters' home is not here: a change by hand has to be published.
  virtual bool kept_elsewhere() const { return false; }
  /// What each parameter server has counted, by its number; nothing without servers.
  virtual std::vector<metrics::Snapshot> counted_by_servers() { return {}; }
  /// This rank's way to the servers; null without any.
  virtual ps::Client* client() { return nullptr; }

  /// Without lockstep: this rank wants all to stop. They do after the same step, or as soon as they ask for work.
  void want_stop() { stop_wanted_ = true; }
  bool stopped() const { return stopped_; }

  /// A few numbers of this rank's, before the last bucket's ready().
  void tell(const Told& numbers) { mine_ = numbers; }
  /// After close(): their sums over all ranks, the same bits everywhere, if this exchange carries them along with the
  /// gradients; null if it does not.
  virtual const Told* told() const { return nullptr; }

  /// After finish() of an exchange without optimizer: whether any rank had a gradient for the slot.
  bool was_present(size_t slot) const { return flags()[slot] != 0; }

  const space::Layout& layout() const { return layout_; }
  const std::vector<space::Bucket>& buckets() const { return buckets_; }
  /// Null when the user keeps an optimizer: then close() leaves the summed gradients in gradients().
  const space::Updater* updater() const { return updater_ ? &*updater_ : nullptr; }

 protected:
  Exchange(space::Layout layout, const Options& options);
  /// The part of begin() that is an implementation's own.
  virtual bool begin_step() { return true; }
  /// One byte per slot: this rank has a gradient for it.
  virtual uint8_t* flags() const = 0;
  /// Updates the parameters of all slots that flags() has, with the gradients as they stand here.
  void update_all();
  void update(size_t bucket, space::Range range, std::span<const space::Source> sources);
  bool watches() const { return options_.on_nan != OnNan::ignore; }
  /// Scales the gradients of all slots that flags() has: here and now, or in the updates that follow. False when they
  /// must not be applied: their sum of squares is not finite, and the step is not sound.
  bool clip_by(double squares);
  /// The same by the gradients as they stand here.
  bool clip_here();
  /// By the end of a step, this part of gradients() has sums over ranks.
  virtual space::Range summed(size_t /*bucket*/) const { return {}; }
  /// Before that: remembers flaws of small tensors, so that they can be told from other ranks'. Large ones would cost a
  /// pass over memory.
  void look(size_t bucket, space::Range part);

  space::Layout layout_;
  Options options_;
  double lr_ = 0;
  Told mine_{};
  std::vector<space::Bucket> buckets_;
  std::optional<space::Updater> updater_;
  bool stop_wanted_ = false, stopped_ = false;
  bool sound_ = true;

 private:
  bool finite(size_t slot, space::Range part) const;
  std::optional<size_t> seen_;  // by look(): a slot with a flaw of this rank's

 public:
  // State: see state/visitor.h. In exchange/state.cpp.

  /// Who of the group shows and takes which range of which vector. A pure function of the settings, the same on all
  /// ranks: nobody is asked. Where parameters live on servers, these are the ranks that fetch and bring them.
  virtual state::OwnerMap owners() const;
  /// Collective, between steps: this rank's part of all that the job knows, as of the last step, and what training goes
  /// on with. Nothing changes, but that ranks which go at their own pace have the newest parameters afterwards. Not
  /// between settle() and resume(). Nobody goes on before all have shown theirs.
  void visit(state::Visitor& visitor, const state::Extras& extras = {});
  /// Collective, between steps, with the same settings but for the number of ranks and the cut of buckets: what
  /// owners() gives this rank comes from `source`. All is checked on all ranks before anything is changed. Throws
  /// InvalidArgument that names both sides where a rank's source is of another model or optimizer or lacks something;
  /// Mismatch on the other ranks then. `extras` are shown and taken beside it.
  void restore(state::Source& source, const state::Extras& extras = {});

 protected:
  /// What one rank has of a bucket.
  struct Share {
    space::Range parameters{}, updated{};            // `updated`: it keeps the optimizer's state of that
    bool own_parameters = false, own_state = false;  // and no other rank has the same: see state::of_worker
  };
  virtual Share share_of(int /*rank*/, size_t /*bucket*/) const { return {}; }
  virtual comm::Communicator& group() const = 0;
  /// Until no rank changes anything any more.
  virtual void come_to_rest() {}
  virtual state::About about() const;
  /// This rank's part of owners() as it lies in memory.
  virtual std::vector<state::Part> parts();
  static constexpr const char *kWorkEpoch = "work/epoch", *kWorkPiece = "work/piece";  // that take() gives next
  static constexpr const char *kServersVersion = "servers/version", *kServersTurn = "servers/turn";
  struct Scalar {
    std::string name;
    int64_t value = 0;
    std::optional<int64_t> otherwise{};  // what is restored where the source has none; without it, there must be one
  };
  using Scalars = std::vector<Scalar>;
  virtual Scalars scalars();
  /// In the order of scalars().
  virtual void restore_scalars(const std::vector<int64_t>& values);
  /// What is neither here in memory nor a scalar.
  virtual void visit_elsewhere(state::Visitor& /*visitor*/) {}
  /// All ranks have taken their parts, not yet their scalars.
  virtual void restore_elsewhere(state::Source& /*source*/) {}
  void check_source(const state::Source& source, const Scalars& scalars, const state::Extras& extras) const;
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
