#pragma once
// An optimizer as a fused kernel over a range of the flat space.
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include <trireme/space/arena.h>
#include <trireme/space/kernels.h>
#include <trireme/space/layout.h>
#include <trireme/space/range.h>

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

/// "sgd", "momentum", …; throws InvalidArgument with the nearest valid name.
Optimizer optimizer_named(const std::string& name);
std::string name_of(Optimizer kind);
std::vector<std::string> optimizer_names();

/// The optimizer and its state for the ranges that this process owns. Not thread-safe, but several threads may update() disjoint ranges at a time.
class Updater {
 public:
  /// `owned`: ranges of the flat space, disjoint; state is kept for them alone. `shared`: other processors read the parameters between updates.
  /// Throws InvalidArgument for impossible settings.
  Updater(const UpdaterOptions& options, std::span<const Range> owned, bool shared = false);

  /// Starts the next step; all updates until the next call use this rate.
  void begin_step(double lr);
  /// Updates `range`, which lies inside owned range number `index`. `parameters` and each of `gradients` point to the start of the flat space.
  void update(size_t index, Range range, DType dtype, std::byte* parameters, std::span<const std::byte* const> gradients);

  const UpdaterOptions& options() const { return options_; }
  int64_t steps() const { return steps_; }
  /// Bytes of optimizer state held here.
  size_t state_bytes() const { return state_.bytes(); }

 private:
  UpdaterOptions options_;
  bool shared_;
  std::vector<Range> owned_;
  std::vector<size_t> state_offset_;  // of each owned range, in bytes, within one state vector
  size_t state_size_ = 0;             // bytes of one state vector
  Arena state_;                       // one or two state vectors, one after the other
  int64_t steps_ = 0;
  double lr_ = 0;
};

/// Somebody's gradients.
struct Source {
  const std::byte* gradients;  // start of the flat space
  const uint8_t* present;      // by slot, from the first one of the call on: not 0 where there is a gradient. Null: everywhere
};

/// Updates `range`, which lies inside owned range `index` and covers slots [first, last) or parts of them, with the sum of all sources. A slot that some
/// sources have no gradient for gets the sum of the others; one that none has is left as it is.
void update_present(Updater& updater, size_t index, const Layout& layout, size_t first, size_t last, Range range, DType dtype, std::byte* parameters,
                    std::span<const Source> sources);

}  // namespace trireme::space
