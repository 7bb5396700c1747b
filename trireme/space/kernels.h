#pragma once
// The inner loops, compiled once per instruction set and picked at run time. All variants give the same bits: the loops
// are element-wise, sums run in rank order or as a tree says, and the compiler may not contract a multiply and an add.
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include <trireme/space/dtype.h>

namespace trireme::space {

enum class Optimizer : uint8_t { sgd, momentum, adagrad, adam, adamw };

// A tree over sources is one number for each: after a source was taken, the last two sums that stand are added so many
// times. In order that is 1, 1, 1, …, (a + b) + (c + d) is 0, 1, 0, 2; the first number does not matter.

/// Sums that may stand at a time.
constexpr size_t kMostStanding = 10;

/// One fused update of `count` elements: the sum of all `gradients`, the optimizer's state and the parameters, in one
/// pass.
struct Update {
  Optimizer optimizer = Optimizer::sgd;
  DType dtype = DType::f32;  // f32 or f64; of parameters, gradients and state
  const void* const* gradients = nullptr;
  int sources = 0;
  const uint8_t* adds = nullptr;  // the tree that they are summed in, see below; null: in their order
  size_t count = 0;
  void* parameters = nullptr;
  void* state[2] = {nullptr, nullptr};
  double lr = 0, momentum = 0, beta1 = 0, beta2 = 0, epsilon = 0, weight_decay = 0;
  bool nesterov = false;
  bool stream = false;  // write the parameters past the caches: other processors read them next. Visible to who sees
                        // what this one publishes afterwards
  double correction1 = 1, correction2 = 1;  // Adam's 1 − βᵗ
  double scale = 1;                         // of the summed gradient
  bool watch = false;  // look for NaN and infinity: a block of kBlock elements whose gradient has some is left as it is
};

/// Elements that sums, checks and updates take at a time: they stay in the first-level cache in between.
constexpr size_t kBlock = 1024;

struct Kernels {
  const char* name;
  /// outs[k][i] = op over j of sources[j][i], summed in the order of j. Outputs may be sources, never shifted against
  /// them.
  void (*reduce)(DType, Op, void* const* outs, int n_outs, const void* const* sources, int n_sources, size_t count);
  /// False when `watch` found something.
  bool (*update)(const Update&);
  /// into[i] += from[i]
  void (*accumulate)(DType, void* into, const void* from, size_t count);
  /// The sum of squares of the sums over `sources`, which are f32 or f64, counted in f64. `out`, if it is not null,
  /// gets the sums, but for blocks of kBlock elements in which NaN or infinity turned up; it may be a source. `adds` is
  /// the tree that they are summed in; null: in their order.
  double (*sum_squares)(DType, void* out, const void* const* sources, const uint8_t* adds, int n_sources, size_t count);
  /// out[i] = the sum over the sources, in that tree; f32 or f64. `out` may be a source, never shifted against it.
  void (*sum_tree)(DType, void* out, const void* const* sources, const uint8_t* adds, int n_sources, size_t count);
  /// data[i] *= factor; f32 or f64.
  void (*scale)(DType, void* data, double factor, size_t count);
  /// Whether there is neither NaN nor infinity; f32 or f64.
  bool (*finite)(DType, const void* data, size_t count);
};

/// The best variant that this processor runs.
const Kernels& kernels();
/// All variants that this processor runs, best first; "plain" is always last.
std::vector<const Kernels*> runnable_kernels();

}  // namespace trireme::space
