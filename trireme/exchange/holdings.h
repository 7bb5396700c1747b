#pragma once
// What the ranks of a machine hold of a model, and what a stage of ZeRO saves: a pure function of the settings, for
// people who choose one and for the first lines of a run.
#include <cstddef>
#include <string>

#include <trireme/space/updater.h>

namespace trireme::exchange {

/// Of one machine in bytes, between steps; gradients: at the end of a backward pass.
struct Holdings {
  size_t parameters = 0, gradients = 0, optimizer = 0;
  size_t window = 0;  // beyond that, while a step is under way (Options::zero_window)
  size_t total() const { return parameters + gradients + optimizer; }
};

struct HoldingsOf {
  size_t parameter_bytes = 0;
  size_t largest_bucket = 0;  // bytes; 0: not known
  space::Optimizer optimizer = space::Optimizer::sgd;
  int zero = 0;
  int ranks_here = 1, machines = 1;  // of those that have the same part of the model
  size_t zero_window = 0;            // Options::zero_window
  bool whole_gradients = false;      // all of a rank's stay until its last backward pass has ended: micro-batches add
                                     // up, or ranks wait for one another (BackwardWaits::anywhere)
  bool in_parts = false;             // the model is divided besides: other ranks of a machine have other parts of it
};

/// Machines divide what a stage divides; the ranks of one share parameters and optimizer state in any case.
Holdings holdings_of(const HoldingsOf& what);

/// "zero 3 on 4 machines: each holds 25.0 MB of parameters (of 100.0), … in all 62 % less than zero 0", or, on one
/// machine, why there is less to save. With `in_parts` what the ranks hold that have one part, on one machine.
std::string describe_holdings(const HoldingsOf& what);

}  // namespace trireme::exchange
