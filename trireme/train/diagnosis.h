#pragma once
// Whether a training gets anywhere, as a pure function of the losses of its epochs so far. It says so only when it is
// sure, since a warning that is often wrong is not read.
//
// Guessing, with classes only: nothing is better than ln(classes), the loss of one who guesses. Not the mean training
// loss of the last epoch, not the test loss (both may be 1 % below), and the test accuracy is at most one and a half
// times that of guessing. One epoch is not enough as long as others follow, for some models are slow to begin; and who
// comes down from far above (data that are not normalised) is left alone as long as the loss falls.
//
// Growing, in any task: the last epoch's training loss is a fifth above the lowest of the epochs before, and more than
// half of what was gained since the first one is lost. Losses that waver around their lowest value do not grow, nor do
// those that rise far below the first.
#include <cstddef>
#include <optional>
#include <span>
#include <string>

namespace trireme::train {

struct EpochLoss {
  double loss = 0;                                 // mean over the epoch's training steps
  std::optional<double> test_loss, test_accuracy;  // at its end; none without a test set, or classes
};

/// What a run has that its advice depends on.
struct Situation {
  size_t classes = 0;      // of cross-entropy; 0: numbers are predicted
  bool ended = false;      // no epoch follows
  double lr = 0;           // the learning rate
  bool momentum = false;   // the optimizer has some
  bool full_rate = false;  // gradients are applied one by one at the full rate
};

struct Diagnosis {
  enum class Kind { well, guessing, growing };
  Kind kind = Kind::well;
  std::string sentence;  // what is wrong and what to try; "" when nothing is
};

Diagnosis diagnose(std::span<const EpochLoss> epochs, const Situation& situation);

}  // namespace trireme::train
