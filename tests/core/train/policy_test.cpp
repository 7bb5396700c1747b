// label: unit
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cmath>
#include <random>

#include <trireme/base/error.h>
#include <trireme/parallel/step_limit.h>
#include <trireme/train/policy.h>

namespace trireme::train {
namespace {

using exchange::OnNan;

EpochLoss epoch(double loss, double test_loss, double accuracy) {
  return {.loss = loss, .test_loss = test_loss, .test_accuracy = accuracy};
}
std::vector<EpochLoss> losses(std::initializer_list<double> values) {
  std::vector<EpochLoss> epochs;
  for (double value : values) epochs.push_back({.loss = value});
  return epochs;
}
StopOptions stop_of(const std::vector<const char*>& texts) {
  StopOptions options;
  for (const char* text : texts) add_stop(text, options, "--stop");
  return options;
}
std::string refusal(const std::vector<const char*>& texts) {
  try {
    return "read as " + name_of(stop_of(texts));
  } catch (const InvalidArgument& error) {
    return error.what();
  }
}

// ---- what stops a run ----

struct Row {
  const char* options;
  Moment now;
  std::vector<EpochLoss> epochs;
  std::string policy;  // "": go on
};

TEST(Policy, StopsWhenItIsReachedAndNotBefore) {
  const std::vector<EpochLoss> good = {epoch(2, 2, 0.3), epoch(0.4, 0.5, 0.9)};
  const Row rows[] = {
      {"accuracy=0.9", {.step = 5, .epoch_ended = true}, good, "accuracy"},
      {"accuracy=0.9", {.step = 5, .epoch_ended = false}, good, ""},  // only at the end of an epoch
      {"accuracy=0.91", {.step = 5, .epoch_ended = true}, good, ""},
      {"accuracy=0.9", {.step = 5, .epoch_ended = true}, {}, ""},
      {"accuracy=0.9", {.step = 5, .epoch_ended = true}, losses({0.1}), ""},  // no test set
      {"loss=0.5", {.step = 5, .epoch_ended = true}, good, "loss"},           // the test loss is 0.5 …
      {"loss=0.45", {.step = 5, .epoch_ended = true}, good, ""},  // … and the training loss does not count
      {"loss=0.45", {.step = 5, .epoch_ended = true}, losses({0.4}), "loss"},
      {"loss=0.45", {.step = 5, .epoch_ended = true}, losses({NAN}), ""},
      {"time=10s", {.step = 5, .seconds = 9.99}, {}, ""},
      {"time=10s", {.step = 5, .seconds = 10}, {}, "time"},
      {"time=10s", {.step = 5, .seconds = 11, .epoch_ended = true}, good, "time"},
      {"steps=5", {.step = 4}, {}, ""},
      {"steps=5", {.step = 5}, {}, "steps"},
      {"plateau=2", {.step = 5, .epoch_ended = true}, losses({1, 0.5, 0.6}), ""},
      {"plateau=2", {.step = 5, .epoch_ended = true}, losses({1, 0.5, 0.6, 0.5}), "plateau"},
      {"plateau=2", {.step = 5, .epoch_ended = true}, losses({1, 0.5, 0.4999, 0.4998}), "plateau"},  // by too little
      {"plateau=2", {.step = 5, .epoch_ended = true}, losses({1, 0.5, 0.499, 0.498}), ""},
      {"plateau=2", {.step = 5, .epoch_ended = false}, losses({1, 0.5, 0.6, 0.5}), ""},
      {"plateau=1", {.step = 5, .epoch_ended = true}, losses({NAN, 2}), ""},
      {"plateau=1", {.step = 5, .epoch_ended = true}, losses({2, NAN}), "plateau"},
      {"nan", {.step = 5, .seconds = 1e9, .epoch_ended = true}, good, ""},
  };
  for (const Row& row : rows) {
    const Decision decision = decide_stop(row.now, row.epochs, stop_of({row.options}));
    EXPECT_EQ(decision.policy, row.policy) << row.options << ": " << decision.reason;
    EXPECT_EQ(static_cast<bool>(decision), !row.policy.empty());
    if (!decision) continue;
    EXPECT_EQ(decision.kind, Decision::stop);
    EXPECT_EQ(decision.step, 5);
    EXPECT_GT(decision.reason.size(), 20u) << "a sentence";
  }
}

TEST(Policy, ReasonsSayBothNumbers) {
  const std::vector<EpochLoss> good = {epoch(2, 2, 0.3), epoch(0.4, 0.5, 0.925)};
  const Moment now{.step = 7, .seconds = 61.5, .epoch_ended = true};
  EXPECT_EQ(decide_stop(now, good, stop_of({"accuracy=0.9"})).reason,
            "the test accuracy is 0.9250 after epoch 2, and 0.9 was to be reached");
  EXPECT_EQ(decide_stop(now, good, stop_of({"loss=0.6"})).reason,
            "the test loss is 0.5 after epoch 2, and 0.6 was to be reached");
  EXPECT_EQ(decide_stop(now, good, stop_of({"time=1m"})).reason,
            "61.5 s have passed since training began, and 1m were given");
  EXPECT_EQ(decide_stop(now, good, stop_of({"steps=7"})).reason, "7 of 7 steps are done");
  EXPECT_EQ(decide_stop(now, losses({0.5, 0.6, 0.7}), stop_of({"plateau=2"})).reason,
            "the training loss has not fallen by 0.1 % for 2 epochs: 0.5 in epoch 1, 0.7 in epoch 3");
}

TEST(Policy, TheFirstOfSeveralCounts) {
  const StopOptions all = stop_of({"plateau=1", "steps=5", "time=1s", "accuracy=0.5"});
  EXPECT_EQ(decide_stop({.step = 5, .seconds = 2, .epoch_ended = true}, std::vector{epoch(1, 1, 0.6)}, all).policy,
            "accuracy");
  EXPECT_EQ(decide_stop({.step = 5, .seconds = 2}, {}, all).policy, "time");
  EXPECT_EQ(decide_stop({.step = 5, .seconds = 0.5}, {}, all).policy, "steps");
  EXPECT_FALSE(decide_stop({.step = 4, .seconds = 0.5}, {}, all));
}

/// An independent reckoning: a loop that keeps the best so far and counts.
TEST(Policy, PlateauIsTheLoopThatCounts) {
  std::mt19937 random(7);
  std::uniform_real_distribution<double> change(-0.004, 0.002);
  for (int round = 0; round < 300; round++) {
    const int patience = 1 + round % 5;
    std::vector<EpochLoss> epochs;
    double loss = 1, best = 0;
    int bad = 0;
    for (int i = 0; i < 40; i++) {
      loss += change(random);
      epochs.push_back({.loss = loss});
      if (i == 0 || loss < best * (1 - 1e-3)) {
        best = loss, bad = 0;
      } else {
        bad++;
      }
      const bool stops = static_cast<bool>(decide_stop({.epoch_ended = true}, epochs, {.plateau = patience}));
      ASSERT_EQ(stops, bad >= patience) << "round " << round << ", epoch " << i;
      if (stops) break;
    }
  }
}

// ---- NaN ----

TEST(Policy, NanIsSkippedUntilThereAreTooManyInARow) {
  const NanOptions skip{.on_nan = OnNan::skip};
  for (int in_a_row = 1; in_a_row <= 12; in_a_row++) {
    const Decision decision =
        decide_nan({.step = 3, .what = "the loss became NaN", .in_a_row = in_a_row, .in_all = 500}, skip);
    EXPECT_EQ(decision.kind, in_a_row < 10 ? Decision::skip : Decision::stop) << in_a_row;
    EXPECT_EQ(decision.policy, "nan");
    EXPECT_NE(decision.reason.find("the loss became NaN"), std::string::npos);
  }
  EXPECT_EQ(decide_nan({.what = "it is NaN", .in_a_row = 10}, skip).reason,
            "10 updates in a row were skipped; of the last, it is NaN");
}

TEST(Policy, NanGoesBackAsOftenAsItMay) {
  const NanOptions back{.on_nan = OnNan::rollback, .most_rollbacks = 2};
  EXPECT_EQ(decide_nan({.what = "x", .in_all = 1, .checkpoint = true}, back).kind, Decision::rollback);
  EXPECT_EQ(decide_nan({.what = "x", .in_all = 2, .checkpoint = true}, back).kind, Decision::rollback);
  EXPECT_EQ(decide_nan({.what = "x", .in_all = 3, .checkpoint = true}, back).kind, Decision::stop);
  EXPECT_EQ(decide_nan({.what = "x", .in_all = 3, .checkpoint = true}, back).reason, "x, after going back 2 times");
  EXPECT_EQ(decide_nan({.what = "x"}, back).reason, "x, and there is no checkpoint yet to go back to");
  EXPECT_EQ(decide_nan({.what = "x"}, {.on_nan = OnNan::stop}).kind, Decision::stop);
  EXPECT_FALSE(decide_nan({.what = "x"}, {.on_nan = OnNan::ignore}));
}

TEST(Policy, AStepThatTookTooLongIsADecision) {
  const std::string late = "rank 1 did not come within 1 s; rank 0 gave up. A longer --step-timeout helps";
  const Decision decision = decide_timeout(7, late, "--step-timeout");
  EXPECT_EQ(decision.kind, Decision::stop);
  EXPECT_EQ(decision.policy, "step-timeout");
  EXPECT_EQ(decision.reason, "rank 1 did not come within 1 s; rank 0 gave up");
  EXPECT_EQ(decision.step, 7);
  EXPECT_FALSE(decide_timeout(7, "rank 1 died. A longer --timeout helps", "--step-timeout"));
  EXPECT_FALSE(decide_timeout(7, late, ""));
}

TEST(Policy, LinesOfManySkippedUpdatesGrowRare) {
  std::vector<int64_t> lines;
  for (int64_t i = 1; i <= 1000; i++)
    if (worth_a_line(i)) lines.push_back(i);
  EXPECT_EQ(lines, (std::vector<int64_t>{1, 2, 3, 4, 8, 16, 32, 64, 128, 256, 512}));
}

// ---- how long a step takes ----

TEST(Policy, AStepMayTakeAsLongAsTheLimit) {
  const WaitLimit limit{Seconds(30), "--step-timeout"};
  EXPECT_EQ(too_long(7, 1, Seconds(30), limit), "");
  EXPECT_EQ(
      too_long(7, 1, Seconds(43), limit),
      "update 7 took 43 s on rank 1, and --step-timeout is 30s. A longer --step-timeout helps if somebody is only "
      "slow");
  EXPECT_EQ(too_long(7, 1, Seconds(1e6), {Seconds(0), "--step-timeout"}), "");
}

// ---- texts ----

TEST(Policy, TextsAreReadBack) {
  for (const auto& texts : {std::vector<const char*>{"accuracy=0.9"},
                            {"loss=0.125"},
                            {"time=10m"},
                            {"steps=1000"},
                            {"plateau=5"},
                            {"nan"},
                            {"accuracy=0.9", "time=1.5h", "plateau=3", "nan"}}) {
    StopOptions options;
    std::string line;
    for (const char* text : texts) {
      add_stop(text, options, "--stop");
      line += (line.empty() ? "" : " ") + std::string(text);
    }
    EXPECT_EQ(name_of(options), line);
  }
  EXPECT_EQ(name_of(StopOptions{}), "");
}

TEST(Policy, BadTextsAreRefusedWithWhatIsAllowed) {
  const std::pair<std::vector<const char*>, const char*> cases[] = {
      {{"accuracy=90"},
       "--stop accuracy=90: an accuracy is a part of the test set, more than 0 and at most 1. Do you "
       "mean accuracy=0.9?"},
      {{"accuracy=-0.5"}, "more than 0 and at most 1, not -0.5"},
      {{"accuracy=0"}, "more than 0 and at most 1, not 0"},
      {{"accuracy=nan"}, "more than 0 and at most 1, not nan"},
      {{"accuracy=high"}, "'high' is not a number"},
      {{"accuracy="}, "'' is not a number"},
      {{"accuracy"}, "say when, as in accuracy=0.9"},
      {{"time"}, "say when, as in time=10m"},
      {{"acuracy=0.9"}, "unknown policy 'acuracy' (did you mean 'accuracy'?)"},
      {{"plato=5"}, "unknown policy 'plato'"},
      {{""}, "unknown policy ''"},
      {{"time=soon"}, "--stop time=soon: 'soon' is not a duration"},
      {{"time=-5m"}, "must be more than 0"},
      {{"steps=0"}, "needs a whole number of updates, at least 1, not '0'"},
      {{"steps=1.5"}, "needs a whole number of updates"},
      {{"plateau=-1"}, "needs a whole number of epochs, at least 1, not '-1'"},
      {{"loss=0"}, "a loss is a number above 0"},
      {{"loss=inf"}, "a loss is a number above 0"},
      {{"nan=3"}, "nan has no value"},
      {{"time=1m", "time=2m"}, "--stop time=2m: time is there twice"},
      {{"accuracy=0.9", "accuracy=0.9"}, "accuracy is there twice"},
      {{"nan", "nan"}, "nan is there twice"},
  };
  for (const auto& [texts, says] : cases)
    EXPECT_NE(refusal(texts).find(says), std::string::npos) << refusal(texts) << "\nwanted: " << says;
}

TEST(Policy, WhatTheDataCannotGiveIsRefused) {
  EXPECT_NO_THROW(check_data({.accuracy = 0.9}, true, true));
  EXPECT_THROW(check_data({.accuracy = 0.9}, false, true), InvalidArgument);
  EXPECT_THROW(check_data({.accuracy = 0.9}, true, false), InvalidArgument);
  EXPECT_NO_THROW(check_data({.loss = 0.9, .time = Seconds(1), .plateau = 2}, false, false));
  EXPECT_THROW(check({.nan = true}, OnNan::skip), InvalidArgument);
  EXPECT_NO_THROW(check({.nan = true}, OnNan::stop));
  EXPECT_THROW(check({.accuracy = 1.5}, OnNan::stop), InvalidArgument);
  EXPECT_THROW(check({.time = Seconds(-1)}, OnNan::stop), InvalidArgument);
  EXPECT_THROW(check({.plateau = -1}, OnNan::stop), InvalidArgument);
}

}  // namespace
}  // namespace trireme::train
