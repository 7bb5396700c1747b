#pragma once
// What a Parallel is asked to do. It contains what its exchange is asked, and is a part of what a training run is asked
// (train/options.h). No torch here: the command reads flags into it.
#include <cstdint>
#include <string>
#include <vector>

#include <trireme/base/advice.h>
#include <trireme/base/clock.h>
#include <trireme/exchange/options.h>
#include <trireme/space/schedule.h>

namespace trireme {

/// What matrix products and convolutions of the loss function are computed in; parameters, optimizer state, losses and
/// sums over ranks are f32 in any case (parallel/precision.h).
enum class Precision : uint8_t { f32, bf16 };
Precision precision_named(const std::string& name);
std::vector<std::string> precision_names();

/// How a feed divides the samples of a step among the ranks (exchange/balance.h). Of the result only the rounding
/// depends on it.
enum class Balancing : uint8_t {
  even,      // everybody computes as many
  watch,     // the same, and a rank that makes the others wait is found
  automatic  // by measured speed, where ranks are in lockstep; and such a rank is found
};
Balancing balancing_named(const std::string& name);
std::vector<std::string> balancing_names();

struct ParallelOptions {
  exchange::Options exchange{};  // how gradients become parameters: sync, rate, clip, on_nan, …
  int accumulate = 1;            // calls of step() per update; with exchange.virtual_workers as many as this rank has
                                 // pieces
  space::ScheduleOptions
      schedule{};             // of the learning rate, by step: of the feed, or of this rank's updates without one
  bool overlap_next = false;  // return from step() when the parameters that come first are there; operators of this
                              // thread that use others wait for them. Before looking at raw memory (data_ptr) use
                              // settled() or exclusive(). No effect where a model is in parts on a mesh
  WaitLimit step_timeout{Seconds(0), "ParallelOptions::step_timeout"};  // see parallel/step_limit.h; 0 s: none
  bool channels_last = false;    // store 4-d weights as N, H, W, C: faster for most convolutions with oneDNN
  bool sync_batch_norm = false;  // batch norms in the loss function use the statistics of all ranks' samples, as
                                 // one process would; otherwise each rank's own. Each layer then waits for all
                                 // ranks, forward and backward. Only where ranks are in lockstep
  Balancing balance = Balancing::even;
  Seconds balance_stint{0.5};            // how long steps are measured before ranks compare what they took, at least
  Precision precision = Precision::f32;  // bf16: matrix products in 16 bits, for models whose parameters are f32
};

/// Throws InvalidArgument for what cannot be honoured.
void check(const ParallelOptions& options);

}  // namespace trireme
