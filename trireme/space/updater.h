#pragma once
// An optimizer as a fused kernel over a range of the flat space.
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include <trireme/space/arena.h>
#include <trireme/space/journal.h>
#include <trireme/space/kernels.h>
#include <trireme/space/layout.h>
#include <trireme/space/originals.h>
#include <trireme/space/range.h>
#include <trireme/space/undo.h>

namespace trireme::space {

/// Settings of an optimizer, named as in libtorch.
struct UpdaterOptions {
  Optimizer kind = Optimizer::sgd;
  double lr = 0.01;                 // learning rate, before any schedule
  double momentum = 0.9;            // momentum only
  bool nesterov = false;            // momentum only
  double beta1 = 0.9;               // adam, adamw
  double beta2 = 0.999;             // adam, adamw
  std::optional<double> epsilon{};  // default: libtorch's, 1e-10 for adagrad and 1e-8 for adam and adamw
  double weight_decay = 0;          // L2 term; decoupled in adamw
};

UpdaterOptions sgd(UpdaterOptions options = {});
UpdaterOptions momentum(UpdaterOptions options = {});
UpdaterOptions adagrad(UpdaterOptions options = {});
UpdaterOptions adam(UpdaterOptions options = {});
UpdaterOptions adamw(UpdaterOptions options = {});

/// The one that was given, or libtorch's default.
double epsilon_of(const UpdaterOptions& options);
/// How many vectors of state, each as long as the parameters, an optimizer keeps.
size_t state_vectors(Optimizer kind);
/// What the formulas need of the options; the memory that they work on is to be added.
Update settings_of(const UpdaterOptions& options, double lr);

/// "sgd", "momentum", …; throws InvalidArgument with the nearest valid name.
Optimizer optimizer_named(const std::string& name);
std::string name_of(Optimizer kind);
std::vector<std::string> optimizer_names();

/// What its state vectors are called, in checkpoint files too: "optimizer/momentum", … In the order of
/// Updater::views().
std::vector<std::string> state_names(Optimizer kind);
/// Whether it counts the steps of each slot.
bool counts_steps(Optimizer kind);

/// Somebody's gradients.
struct Source {
  const std::byte* gradients;  // start of the flat space
  const uint8_t*
      present;       // by slot, from the first one of the call on: not 0 where there is a gradient. Null: everywhere
  uint8_t adds = 1;  // the tree of the sum over sources (kernels.h); all 1: in their order. Where some are absent, the
                     // others are added as if those were not in the tree
};

/// Memory for an optimizer's state that outlives it, zeroed.
struct StateMemory {
  std::vector<std::byte*> vectors;  // each as long as the flat space, one for each of state_names()
  std::vector<int64_t*> steps;      // by owned range: of its slots. For optimizers that count steps
};

/// The optimizer and its state for the ranges that this process owns. Not thread-safe, but several threads may update()
/// disjoint ranges at a time.
///
/// Adam's bias correction depends on the number of steps: of each slot, those in which somebody had a gradient for it,
/// as in libtorch.
class Updater {
 public:
  /// `owned`: ranges of the flat space, disjoint; state is kept for them alone. `shared`: other processors read the
  /// parameters between updates. Throws InvalidArgument for impossible settings.
  Updater(const UpdaterOptions& options, std::span<const Range> owned, bool shared = false);
  /// With state in memory of the caller's, which outlives this.
  Updater(const UpdaterOptions& options, std::span<const Range> owned, bool shared, const StateMemory& memory);

  /// Starts the next step; all updates until the next call use this rate.
  void begin_step(double lr);
  /// For the rest of the step: gradients count this much. begin_step() sets it back to 1.
  void scale(double factor) { scale_ = factor; }
  double scale() const { return scale_; }
  /// From now on: leave parameters and state as they are where gradients are NaN or infinite, and in the same block.
  void watch(bool on) { watch_ = on; }
  /// Updates `range`, which lies inside owned range number `index`. `parameters` and each of `gradients` point to the
  /// start of the flat space. False when watch() is on and something was left as it is.
  bool update(size_t index, Range range, DType dtype, std::byte* parameters,
              std::span<const std::byte* const> gradients);

  /// Slots [first, last) of owned range `index`, always the same for an index: counts this step for those in `range`
  /// that some source has a gradient for, once however often it is called. Before several threads call update_present()
  /// for one owned range, one of them calls this.
  void count(size_t index, const Layout& layout, size_t first, size_t last, Range range,
             std::span<const Source> sources);

  const UpdaterOptions& options() const { return options_; }
  bool counts() const { return counts_steps(options_.kind); }
  int64_t steps() const { return steps_; }
  /// Bytes of optimizer state held here.
  size_t state_bytes() const { return state_size_ * state_vectors(options_.kind); }

  /// A part of a state vector as it lies here: whoever writes to it changes the optimizer.
  struct View {
    std::string vector;  // one of state_names()
    Range range{};       // of the flat space
    std::span<std::byte> bytes{};
  };
  /// All state, vector by vector and in each by owned range. Valid as long as this lives. Between steps.
  std::vector<View> views();
  /// Whether this is a byte of theirs.
  bool keeps(const std::byte* state) const;
  /// The steps of each of the `slots` slots of owned range `index`; empty where the optimizer does not count them. A
  /// view, as above. Slots outside of the owned range stay at 0.
  std::span<int64_t> slot_steps(size_t index, size_t slots);
  /// From now on: what is updated is saved for them before, until they are released. Between steps.
  void follow(std::shared_ptr<Originals> originals) { followers_.push_back(std::move(originals)); }
  /// From now on: updates are written down there before they are made. It outlives this.
  void write_down(Journal* journal) { journal_ = journal; }
  /// Somebody else will write to parameters or state: all that is followed is saved.
  void save_originals();

  /// By a guess, in this step: what is overwritten from now on is kept, at most so many bytes of it.
  void begin_guess(size_t most_bytes);
  /// Whether an update of all of owned range `index` can be kept too.
  bool can_guess(size_t index) const;
  /// What was updated since begin_guess() stays, and what is updated from now on too.
  void confirm();
  /// Parameters, state and counts of steps are as they were at begin_guess(), bit by bit.
  void take_back();

  /// So many steps have been: the next begin_step() starts another one.
  void restart(int64_t steps);

 private:
  /// By slot of an owned range.
  struct Counts {
    std::span<int64_t> steps;
    std::vector<int64_t> last;  // the updater's step that was counted last
    std::vector<int64_t> own;   // steps, unless they are in memory of the caller's
  };
  friend bool update_present(Updater&, size_t, const Layout&, size_t, size_t, Range, DType, std::byte*,
                             std::span<const Source>);
  /// Of a slot, by its place among those of owned range `index`.
  int64_t steps_of(size_t index, size_t slot) const { return counts() ? counts_[index].steps[slot] : steps_; }
  bool apply(size_t index, Range range, DType dtype, std::byte* parameters, std::span<const std::byte* const> gradients,
             const uint8_t* adds, int64_t steps);
  bool update_in_pieces(const Update& all, size_t index, Range range);

  UpdaterOptions options_;
  bool shared_;
  std::vector<Range> owned_;
  std::vector<size_t> state_offset_;  // of each owned range, in bytes, within one state vector
  size_t state_size_ = 0;             // bytes of the owned ranges, in whole lines
  Arena state_;                       // one or two state vectors, one after the other; empty with a caller's memory
  std::vector<std::byte*> vectors_;   // where each begins
  std::vector<int64_t*> steps_at_;    // by owned range, in the caller's memory
  std::vector<Counts> counts_;        // by owned range; for optimizers that count
  int64_t steps_ = 0;
  double lr_ = 0, scale_ = 1;
  bool watch_ = false;
  std::vector<std::shared_ptr<Originals>> followers_;
  Journal* journal_ = nullptr;
  bool guessing_ = false;
  size_t most_kept_ = 0;  // bytes, of a guess
  Undo undo_;
};

/// Updates `range`, which lies inside owned range `index` and covers slots [first, last) or parts of them, with the sum
/// of all sources. A slot that some sources have no gradient for gets the sum of the others; one that none has is left
/// as it is. Returns what update() does.
bool update_present(Updater& updater, size_t index, const Layout& layout, size_t first, size_t last, Range range,
                    DType dtype, std::byte* parameters, std::span<const Source> sources);

/// The sum of squares of what update_present() would take as the gradient of `range`. With `sums`, the start of a flat
/// space (it may be a source's), the summed gradient is written there, but for blocks in which it is not finite. Slots
/// that somebody else counts (Slot::counted) count only where they are not finite.
double squares_present(const Layout& layout, size_t first, size_t last, Range range, DType dtype, std::byte* sums,
                       std::span<const Source> sources);

/// The same sum into the flat space `sums`, which may be a source's; zeros where nobody has a gradient.
void sum_present(const Layout& layout, size_t first, size_t last, Range range, DType dtype, std::byte* sums,
                 std::span<const Source> sources);

/// What a gradient with this sum of squares is multiplied with, so that its norm is at most `limit`: libtorch's
/// formula. 1 where the norm is not finite, or without a limit (0): nothing becomes 0 in silence.
double clip_factor(double squares, double limit);

}  // namespace trireme::space
