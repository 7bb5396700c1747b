#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <bit>
#include <charconv>
#include <cmath>

#include <trireme/base/duration.h>
#include <trireme/base/error.h>
#include <trireme/base/nearest.h>
#include <trireme/train/policy.h>

namespace trireme::train {
namespace {

using Epochs = std::span<const EpochLoss>;
constexpr std::array kDecisions = {"go on", "stop", "skip", "rollback"};
constexpr const char *kAccuracy = "accuracy", *kLoss = "loss", *kTime = "time", *kSteps = "steps",
                     *kPlateauName = "plateau", *kNan = "nan", *kStepTimeout = "step-timeout";

constexpr std::array<std::string_view, 5> kExamples = {"accuracy=0.9", "loss=0.1", "time=10m", "steps=1000",
                                                       "plateau=5"};

double loss_of(const EpochLoss& epoch) { return epoch.test_loss.value_or(epoch.loss); }
const char* whose(const EpochLoss& epoch) { return epoch.test_loss ? "test" : "training"; }

Decision stop(const char* policy, int64_t step, std::string reason) {
  return {Decision::stop, policy, std::move(reason), step};
}

Decision by_accuracy(const Moment& now, Epochs epochs, const StopOptions& o) {
  if (!o.accuracy || !now.epoch_ended || epochs.empty()) return {};
  const double reached = epochs.back().test_accuracy.value_or(0);
  if (!(reached >= *o.accuracy)) return {};
  return stop(kAccuracy, now.step,
              fmt::format("the test accuracy is {:.4f} after epoch {}, and {:g} was to be reached", reached,
                          epochs.size(), *o.accuracy));
}

Decision by_loss(const Moment& now, Epochs epochs, const StopOptions& o) {
  if (!o.loss || !now.epoch_ended || epochs.empty() || !(loss_of(epochs.back()) <= *o.loss)) return {};
  return stop(kLoss, now.step,
              fmt::format("the {} loss is {:.4g} after epoch {}, and {:g} was to be reached", whose(epochs.back()),
                          loss_of(epochs.back()), epochs.size(), *o.loss));
}

Decision by_time(const Moment& now, const StopOptions& o) {
  if (!o.time || !(now.seconds >= o.time->count())) return {};
  return stop(
      kTime, now.step,
      fmt::format("{:.3g} s have passed since training began, and {} were given", now.seconds, duration_text(*o.time)));
}

Decision by_steps(const Moment& now, const StopOptions& o) {
  if (o.steps <= 0 || now.step < o.steps) return {};
  return stop(kSteps, now.step, fmt::format("{} of {} steps are done", now.step, o.steps));
}

/// The epoch with the lowest loss; a later one counts only if it is lower by kPlateau.
size_t best_of(Epochs epochs) {
  size_t best = 0;
  for (size_t i = 1; i < epochs.size(); i++) {
    const double lowest = loss_of(epochs[best]), loss = loss_of(epochs[i]);
    if (loss < lowest - kPlateau * std::abs(lowest) || (!std::isfinite(lowest) && std::isfinite(loss))) best = i;
  }
  return best;
}

Decision by_plateau(const Moment& now, Epochs epochs, const StopOptions& o) {
  if (o.plateau <= 0 || !now.epoch_ended || epochs.empty()) return {};
  const size_t best = best_of(epochs), since = epochs.size() - 1 - best;
  if (since < static_cast<size_t>(o.plateau)) return {};
  return stop(kPlateauName, now.step,
              fmt::format("the {} loss has not fallen by {:g} % for {} epoch{}: {:.4g} in epoch {}, {:.4g} in epoch {}",
                          whose(epochs.back()), kPlateau * 100, since, since == 1 ? "" : "s", loss_of(epochs[best]),
                          best + 1, loss_of(epochs.back()), epochs.size()));
}

template <class T>
std::optional<T> number_in(const std::string& text) {
  T value{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc{} || end != text.data() + text.size()) return {};
  return value;
}

int64_t whole_number(const std::string& text, const std::string& what, const char* unit) {
  const auto number = number_in<int64_t>(text);
  if (!number || *number < 1 || *number > 1'000'000'000'000)
    fail<InvalidArgument>("{} needs a whole number of {}, at least 1, not '{}'", what, unit, text);
  return *number;
}

void check_accuracy(double accuracy, const std::string& what) {
  if (accuracy > 0 && accuracy <= 1) return;
  const bool percent = accuracy > 1 && accuracy <= 100;
  fail<InvalidArgument>(
      "{}: an accuracy is a part of the test set, more than 0 and at most 1{}", what,
      percent ? fmt::format(". Do you mean accuracy={:g}?", accuracy / 100) : fmt::format(", not {:g}", accuracy));
}

void check_loss(double loss, const std::string& what) {
  if (!(std::isfinite(loss) && loss > 0)) fail<InvalidArgument>("{}: a loss is a number above 0, not {:g}", what, loss);
}

double real_number(const std::string& text, const std::string& what) {
  const auto number = number_in<double>(text);
  if (!number) fail<InvalidArgument>("{}: '{}' is not a number", what, text);
  return *number;
}

bool has(const StopOptions& o, const std::string& name) {
  return (name == kAccuracy && o.accuracy) || (name == kLoss && o.loss) || (name == kTime && o.time) ||
         (name == kSteps && o.steps > 0) || (name == kPlateauName && o.plateau > 0) || (name == kNan && o.nan);
}

void set(StopOptions& o, const std::string& name, const std::string& value, const std::string& what) {
  if (name == kAccuracy) check_accuracy(*(o.accuracy = real_number(value, what)), what);
  if (name == kLoss) check_loss(*(o.loss = real_number(value, what)), what);
  if (name == kTime) o.time = duration_named(value, what);
  if (name == kSteps) o.steps = whole_number(value, what, "updates");
  if (name == kPlateauName)
    o.plateau = static_cast<int>(std::min<int64_t>(1 << 30, whole_number(value, what, "epochs")));
  if (name == kNan) o.nan = true;
}

}  // namespace

std::string name_of(Decision::Kind kind) { return kDecisions[kind]; }

Decision decide_stop(const Moment& now, Epochs epochs, const StopOptions& options) {
  if (Decision d = by_accuracy(now, epochs, options)) return d;
  if (Decision d = by_loss(now, epochs, options)) return d;
  if (Decision d = by_time(now, options)) return d;
  if (Decision d = by_steps(now, options)) return d;
  return by_plateau(now, epochs, options);
}

Decision decide_nan(const NanHistory& h, const NanOptions& o) {
  const auto decided = [&](Decision::Kind kind, std::string reason) {
    return Decision{kind, kNan, std::move(reason), h.step};
  };
  switch (o.on_nan) {
    case exchange::OnNan::ignore:
      return {};
    case exchange::OnNan::skip:
      if (h.in_a_row < o.most_in_a_row) return decided(Decision::skip, h.what);
      return decided(Decision::stop,
                     fmt::format("{} updates in a row were skipped; of the last, {}", h.in_a_row, h.what));
    case exchange::OnNan::rollback:
      if (!h.checkpoint) return decided(Decision::stop, h.what + ", and there is no checkpoint yet to go back to");
      if (h.in_all <= o.most_rollbacks) return decided(Decision::rollback, h.what);
      return decided(Decision::stop, fmt::format("{}, after going back {} time{}", h.what, o.most_rollbacks,
                                                 o.most_rollbacks == 1 ? "" : "s"));
    case exchange::OnNan::stop:
      break;
  }
  return decided(Decision::stop, h.what);
}

Decision decide_timeout(int64_t step, const std::string& error, const std::string& setting) {
  if (setting.empty() || error.find(setting) == std::string::npos) return {};
  return {Decision::stop, kStepTimeout, first_sentence(error), step};
}

std::string first_sentence(const std::string& error) { return error.substr(0, error.find(". ")); }

std::vector<std::string> stop_names() { return {kAccuracy, kLoss, kTime, kSteps, kPlateauName, kNan}; }

void add_stop(const std::string& text, StopOptions& options, const std::string& what) {
  const size_t equals = text.find('=');
  const std::string name = text.substr(0, equals), where = fmt::format("{} {}", what, text);
  const std::vector<std::string> names = stop_names();
  if (std::find(names.begin(), names.end(), name) == names.end())
    fail<InvalidArgument>(
        "{}: unknown policy '{}'{}: accuracy=0.9, loss=0.1, time=10m, steps=1000, plateau=5 (epochs) or nan", where,
        name, did_you_mean(name, names));
  if (name == kNan && equals != std::string::npos) fail<InvalidArgument>("{}: nan has no value", where);
  if (name != kNan && equals == std::string::npos)
    fail<InvalidArgument>(
        "{}: say when, as in {}", where,
        *std::find_if(kExamples.begin(), kExamples.end(), [&](std::string_view one) { return one.starts_with(name); }));
  if (has(options, name)) fail<InvalidArgument>("{}: {} is there twice; give it once", where, name);
  set(options, name, name == kNan ? "" : text.substr(equals + 1), where);
}

std::string name_of(const StopOptions& o) {
  std::string text;
  const auto add = [&](const std::string& one) { text += (text.empty() ? "" : " ") + one; };
  if (o.accuracy) add(fmt::format("accuracy={}", *o.accuracy));
  if (o.loss) add(fmt::format("loss={}", *o.loss));
  if (o.time) add("time=" + duration_text(*o.time));
  if (o.steps > 0) add(fmt::format("steps={}", o.steps));
  if (o.plateau > 0) add(fmt::format("plateau={}", o.plateau));
  if (o.nan) add("nan");
  return text;
}

void check(const StopOptions& o, exchange::OnNan on_nan) {
  if (o.accuracy) check_accuracy(*o.accuracy, "stop");
  if (o.loss) check_loss(*o.loss, "stop");
  if (o.time && !(o.time->count() > 0))
    fail<InvalidArgument>("stop: a time is more than 0 s, not {:g}", o.time->count());
  if (o.steps < 0 || o.plateau < 0)
    fail<InvalidArgument>("stop: steps and plateau are at least 0, not {} and {}", o.steps, o.plateau);
  if (o.nan && on_nan != exchange::OnNan::stop)
    fail<InvalidArgument>("stop nan and on-nan {} contradict each other: leave one of them out",
                          exchange::name_of(on_nan));
}

void check_data(const StopOptions& o, bool has_test, bool has_classes) {
  if (o.accuracy && !has_classes)
    fail<InvalidArgument>(
        "stop accuracy={:g}: numbers are predicted here, and there is no accuracy. Use loss=…, the mean squared error",
        *o.accuracy);
  if (o.accuracy && !has_test)
    fail<InvalidArgument>(
        "stop accuracy={:g}: there is no test set to measure it with. Give one (docs/data.md), or use loss=…, which is "
        "the training loss then",
        *o.accuracy);
}

bool worth_a_line(int64_t number) { return number <= 3 || std::has_single_bit(static_cast<uint64_t>(number)); }

}  // namespace trireme::train
