#pragma once
// What a trained model says to samples, and how often it is right. One process; libtorch uses its threads. Blocks; not
// thread-safe.
#include <torch/types.h>

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include <trireme/models/load.h>
#include <trireme/models/samples.h>

namespace trireme::models {

struct ClassScore {
  std::string name;
  int64_t samples = 0;  // that are of this class
  int64_t answers = 0;  // that said so
  int64_t right = 0;    // both
};

struct Evaluation {
  size_t samples = 0;
  double loss = 0;                       // mean cross-entropy, or mean squared error in the label's own unit
  std::optional<double> accuracy{};      // classes, tokens: part of the answers that are right
  std::vector<ClassScore> classes{};     // classes
  std::optional<double> absolute_error;  // numbers: mean of |answer - label|, in the label's own unit
  std::optional<double> perplexity{};    // tokens: e to the loss
  int64_t tokens = 0;                    // tokens: that were to be found
};

/// After each batch: how many samples are done.
using OnAnswered = std::function<void(size_t done, size_t all)>;

/// Compares with the samples' labels. Loss and accuracy are those that `trireme train` reports, up to rounding.
Evaluation evaluate(
    Loaded& model, const Samples& samples, const OnAnswered& progress = [](size_t, size_t) {});

/// Calls visit(first, answers) batch by batch in the order of samples.chosen: probabilities, a row of classes for each
/// sample, or one number for each in the label's own unit. Both are f64.
void answer(Loaded& model, const Samples& samples,
            const std::function<void(size_t first, const torch::Tensor&)>& visit);

/// What the outputs of the network mean: the same for one batch.
torch::Tensor answers_of(const About& about, const torch::Tensor& outputs);

}  // namespace trireme::models
