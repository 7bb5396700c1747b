#pragma once
// What a run has come to so far, as its checkpoints keep it: who resumes goes on counting. A value.
#include <string>
#include <vector>

#include <trireme/train/trainer.h>

namespace trireme::train {

struct History {
  std::vector<EpochResult> epochs;  // that have ended
  EpochResult partial{};            // of the one that had not
  size_t partial_steps = 0;         // of which its loss is the mean
  double seconds = 0;               // of training
  double time = 0;                  // all of it, for --stop time

  std::string json() const;
  /// Throws Corruption for a text that is none. "" is an empty history.
  static History parse(const std::string& text);
};

}  // namespace trireme::train
