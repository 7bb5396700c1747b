#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include <trireme/train/diagnosis.h>

namespace trireme::train {
namespace {

constexpr double kAsGuessing = 0.99;  // of ln(classes)
constexpr double kLucky = 1.5;        // times the accuracy of guessing
constexpr double kFromAbove = 1.1;    // times ln(classes): where a first epoch's mean may have begun far above
constexpr double kFalling = 0.99;     // of the epoch before
constexpr double kHigher = 1.2;       // times the lowest loss
constexpr double kLost = 0.5;         // of what was gained since the first epoch
using Epochs = std::span<const EpochLoss>;

bool guesses(Epochs epochs, const Situation& s) {
  if (s.classes < 2 || epochs.empty()) return false;
  const EpochLoss& last = epochs.back();
  const double chance = std::log(static_cast<double>(s.classes)), limit = kAsGuessing * chance;
  if (last.loss < limit || last.test_loss.value_or(limit) < limit) return false;
  if (last.test_accuracy.value_or(0) > kLucky / static_cast<double>(s.classes)) return false;
  if (epochs.size() == 1) return s.ended && last.loss < kFromAbove * chance;
  return last.loss >= kFalling * epochs[epochs.size() - 2].loss;
}

/// The lowest of the epochs before the last.
const EpochLoss& lowest_before(Epochs epochs) {
  return *std::min_element(epochs.begin(), epochs.end() - 1,
                           [](const EpochLoss& a, const EpochLoss& b) { return a.loss < b.loss; });
}

bool grows(Epochs epochs) {
  if (epochs.size() < 2) return false;
  const double first = epochs.front().loss, lowest = lowest_before(epochs).loss, last = epochs.back().loss;
  return last > kHigher * lowest && last > lowest + kLost * (first - lowest);
}

std::string advice(const Situation& s) {
  return fmt::format("Try a smaller learning rate than {:g}{}{}", s.lr, s.full_rate ? ", --rate share" : "",
                     s.momentum ? ", less momentum, or --warmup" : ", or --warmup");
}

}  // namespace

Diagnosis diagnose(Epochs epochs, const Situation& s) {
  if (guesses(epochs, s))
    return {Diagnosis::Kind::guessing, fmt::format("the loss is {:.4f} after {} epoch{}, no better than guessing: "
                                                   "ln({} classes) is {:.4f}. {}; if the loss stays there, look at the "
                                                   "labels and at the range of the data",
                                                   epochs.back().loss, epochs.size(), epochs.size() == 1 ? "" : "s",
                                                   s.classes, std::log(static_cast<double>(s.classes)), advice(s))};
  if (grows(epochs))
    return {Diagnosis::Kind::growing,
            fmt::format("the loss grows: {:.4g} in epoch {}, {:.4g} in epoch {}. {}", lowest_before(epochs).loss,
                        &lowest_before(epochs) - epochs.data() + 1, epochs.back().loss, epochs.size(), advice(s))};
  return {};
}

}  // namespace trireme::train
