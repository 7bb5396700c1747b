#pragma once
// How gradients become new parameters. Each way of synchronising is one small implementation of the verbs of a step.
//
// All else has a name of its own, and an exchange hands it out: what it is (Traits), what became of a step (Outcome),
// where the vectors are (Flat) and the work comes from (WorkSource), what it keeps between steps (State); and where it
// can: parameters that come and go (Paging), a crew that changes (Succession), pieces that are summed in one order
// (VirtualWorkers). Those are parts of the exchange itself, so a call through them costs what a verb does.
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>

#include <trireme/exchange/compression.h>
#include <trireme/exchange/group.h>
#include <trireme/exchange/options.h>
#include <trireme/exchange/outcome.h>
#include <trireme/exchange/paging.h>
#include <trireme/exchange/state.h>
#include <trireme/exchange/succession.h>
#include <trireme/exchange/traits.h>
#include <trireme/exchange/virtual_workers.h>
#include <trireme/exchange/work_source.h>
#include <trireme/ps/client.h>
#include <trireme/space/layout.h>
#include <trireme/space/updater.h>

namespace trireme::exchange {

/// Not thread-safe. One step is
///   begin()      may block where the rules make this rank wait
///   …            the forward pass: await() parameters of the step before that are still on their way
///   open()       gradients will come now: write them to flat(), and say which are present
///   ready()      for each bucket in order; what this rank has to tell() is told before the last one
///   close()      outcome().told is known
///   land()       all parameters are in place; or later, in the next open()
/// Gradients are summed over ranks: whoever wants a mean weights them before.
class Exchange : protected State {
 public:
  ~Exchange() override = default;

  // ---- the verbs ----

  /// False, and nothing has begun, when the ranks have agreed to stop. `leased` is the step of the piece that source()
  /// gave for it; otherwise it is this rank's next one.
  bool begin(double lr, std::optional<int64_t> leased = {});
  /// Blocks until the step before has landed.
  virtual void open();
  /// A few numbers of this rank's.
  void tell(const Told& numbers) { mine_ = numbers; }
  /// All gradients of a bucket are in place, or will not come. Buckets become ready in the order of Flat::buckets();
  /// may do work, does not wait. From now on the bucket's parameters may change.
  virtual void ready(size_t bucket) = 0;
  /// Before close(), where this rank would wait for others until `enough`: updates what may be updated by then, see
  /// Options::ahead. Does not wait.
  virtual void go_ahead(const std::function<bool()>& /*enough*/) {}
  /// All buckets are ready. Blocks until outcome().told is valid. Without an updater the summed gradients are left in
  /// flat().
  virtual void close() = 0;
  /// After close(): blocks until this step's parameters in a part of the flat vector are in place on this rank and may
  /// be used.
  virtual void await(space::Range /*part*/) {}
  /// After close(): blocks until all of them are. Does nothing when they have.
  void land() override {}

  // ---- what it is, and hands out ----

  const Traits& traits() const { return traits_; }
  const Outcome& outcome() const { return outcome_; }
  /// Until the next open(): the first gradient that is not finite of those that this rank has, in the order of the
  /// backward pass. Slow.
  std::optional<Flaw> flaw() const;
  Flat& flat() { return *this; }
  const Flat& flat() const { return *this; }
  /// Where this rank's pieces of work come from, and where it says that it wants to stop.
  WorkSource& source() const { return *source_; }
  State& state() { return *this; }
  const State& state() const { return *this; }
  /// Null where all parameters are here all the time.
  Paging* paging() const { return paging_; }
  /// Null without Options::elastic.
  Succession* succession() const { return succession_; }
  /// Null without Options::virtual_workers.
  VirtualWorkers* virtual_workers() const { return virtual_workers_; }
  /// This rank's way to the parameter servers; null without any.
  ps::Client* client() const { return to_servers_; }
  /// With Options::candidates, several machines: what was chosen. Null: nothing is to choose.
  const Compression* compression() const { return compression_; }

 protected:
  Exchange(space::Layout layout, const Options& options, const Traits& traits);
  /// The part of begin() that is an implementation's own.
  virtual bool begin_step(std::optional<int64_t> /*leased*/) { return true; }
  /// By the end of a step, this part of gradients() has sums over ranks.
  virtual space::Range summed(size_t /*bucket*/) const { return {}; }

  /// Updates the parameters of all slots that flags() has, with the gradients as they stand here.
  void update_all();
  void update(size_t bucket, space::Range range, std::span<const space::Source> sources);
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

  double lr_ = 0;
  Told mine_{};
  Outcome outcome_;
  // Set by the implementation's constructor, where it has it.
  Paging* paging_ = nullptr;
  Succession* succession_ = nullptr;
  VirtualWorkers* virtual_workers_ = nullptr;
  ps::Client* to_servers_ = nullptr;
  const Compression* compression_ = nullptr;

 private:
  friend std::unique_ptr<Exchange> make_exchange(const Group&, const space::Layout&,
                                                 const std::optional<space::UpdaterOptions>&, const Options&);
  bool finite(size_t slot, space::Range part) const;
  double of_all_parts(double squares) const;
  std::optional<double> factor_by(double squares);
  bool may_guess(double squares) const;

  size_t ahead_ = 0;                   // buckets of this step that were updated by a guess
  bool would_hold_ = true;             // whether the guess was right in the step before, or would have been
  std::optional<size_t> seen_;         // by look(): a slot with a flaw of this rank's
  std::optional<size_t> seen_in_sum_;  // by look_at_sum()
};

/// Collective. Throws Mismatch that names the first parameter or setting in which ranks differ. Without an optimizer,
/// `sync` must be allreduce.
std::unique_ptr<Exchange> make_exchange(const Group& group, const space::Layout& layout,
                                        const std::optional<space::UpdaterOptions>& optimizer, const Options& options);

}  // namespace trireme::exchange
