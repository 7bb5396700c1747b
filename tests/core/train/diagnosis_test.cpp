// label: unit
#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include <trireme/train/diagnosis.h>

namespace trireme::train::tests {
namespace {

using Kind = Diagnosis::Kind;

std::vector<EpochLoss> losses(std::initializer_list<double> values) {
  std::vector<EpochLoss> epochs;
  for (double value : values) epochs.push_back({.loss = value});
  return epochs;
}

std::vector<EpochLoss> with_accuracy(std::vector<EpochLoss> epochs, double accuracy) {
  for (EpochLoss& epoch : epochs) epoch.test_accuracy = accuracy;
  return epochs;
}

Kind kind(const std::vector<EpochLoss>& epochs, size_t classes, bool ended = false) {
  return diagnose(epochs, {.classes = classes, .ended = ended, .lr = 0.1}).kind;
}

TEST(Diagnosis, StaysAtTheLossOfGuessing) {
  EXPECT_EQ(kind(losses({2.3083, 2.3060}), 10), Kind::guessing);
  EXPECT_EQ(kind(with_accuracy(losses({2.3083, 2.3060, 2.3065}), 0.1), 10), Kind::guessing);
  EXPECT_EQ(kind(losses({0.70, 0.695}), 2), Kind::guessing);
  EXPECT_EQ(kind(losses({2.3, 2.31}), 0), Kind::well) << "numbers have no classes to guess";
}

TEST(Diagnosis, ReturnsToTheLossOfGuessing) {
  EXPECT_EQ(kind(losses({1.436, 2.3048, 2.3043}), 10), Kind::guessing);
  EXPECT_EQ(kind(losses({0.6, 0.5, 2.3046}), 10), Kind::guessing);
}

TEST(Diagnosis, AFirstEpochMayBeSlow) {
  EXPECT_EQ(kind(losses({2.3020}), 10), Kind::well);
  EXPECT_EQ(kind(losses({2.3020}), 10, true), Kind::guessing) << "but no other follows";
  EXPECT_EQ(kind(losses({2.3020, 2.27}), 10), Kind::well);
  EXPECT_EQ(kind(losses({2.3020, 1.5}), 10), Kind::well);
}

TEST(Diagnosis, SlowIsNotGuessing) {
  EXPECT_EQ(kind(with_accuracy(losses({2.3020, 2.2950}), 0.31), 10), Kind::well);
  std::vector<EpochLoss> late = losses({2.3020});
  late[0].test_loss = 2.2;  // the mean of an epoch lags behind
  EXPECT_EQ(kind(late, 10, true), Kind::well);
}

TEST(Diagnosis, WhoComesDownFromFarAboveIsLeftAlone) {
  EXPECT_EQ(kind(losses({50, 10, 3}), 10), Kind::well);
  EXPECT_EQ(kind(losses({50}), 10, true), Kind::well) << "nobody knows where it ended";
  EXPECT_EQ(kind(losses({50, 49.9}), 10), Kind::guessing);
}

TEST(Diagnosis, Grows) {
  for (size_t classes : {size_t{0}, size_t{10}}) {
    EXPECT_EQ(kind(losses({0.5, 0.7}), classes), Kind::growing);
    EXPECT_EQ(kind(losses({0.8, 0.3, 0.65}), classes), Kind::growing);
    EXPECT_EQ(kind(losses({0.8, 0.3, 0.35, 0.4}), classes), Kind::well) << "most of what was gained is still there";
  }
  EXPECT_EQ(kind(losses({1, 1e3, 1e9}), 0), Kind::growing);
}

TEST(Diagnosis, WaveringIsNotGrowing) {
  EXPECT_EQ(kind(losses({0.500, 0.498, 0.503, 0.499, 0.51}), 0), Kind::well);
  EXPECT_EQ(kind(losses({1, 1e-6, 1e-5}), 0), Kind::well);
  EXPECT_EQ(kind(losses({0, 0, 0}), 0), Kind::well);
  EXPECT_EQ(kind(losses({0.9, 0.02, 0.05}), 10), Kind::well);
  EXPECT_EQ(kind(losses({0.7}), 0, true), Kind::well);
  EXPECT_EQ(kind({}, 10, true), Kind::well);
}

TEST(Diagnosis, SaysWhatToTry) {
  const auto stuck = losses({2.3083, 2.3060});
  const std::string text = diagnose(stuck, {.classes = 10, .lr = 0.05, .momentum = true, .full_rate = true}).sentence;
  for (const char* part : {"2.3060", "2 epochs", "ln(10 classes) is 2.3026", "smaller learning rate than 0.05",
                           "--rate share", "less momentum"})
    EXPECT_NE(text.find(part), std::string::npos) << text;
  EXPECT_EQ(diagnose(stuck, {.classes = 10, .lr = 0.05}).sentence.find("momentum"), std::string::npos);
  EXPECT_EQ(diagnose(losses({0.8, 0.3, 0.65}), {.lr = 0.05}).sentence,
            "the loss grows: 0.3 in epoch 2, 0.65 in epoch 3. Try a smaller learning rate than 0.05, or --warmup");
  EXPECT_EQ(diagnose(losses({0.8, 0.3}), {.lr = 0.05}).sentence, "");
}

}  // namespace
}  // namespace trireme::train::tests
