#pragma once
// What ends a run early, and what becomes of an update that is no number: policies. Each is a pure function of what has
// been so far and of what was asked for; it returns a decision and the reason for it, as a sentence that log, report
// and tests share. No clock, no I/O, no torch: a loop of one's own calls the same functions.
//
//   trireme::StopOptions stop{.accuracy = 0.9, .time = trireme::Seconds(600)};
//   …
//   if (auto decision = trireme::decide_stop({.step = n, .seconds = s, .epoch_ended = true}, losses, stop); decision)
//     std::puts(decision.reason.c_str());
//
// Ranks that train together have to decide alike: one of them decides, and request_stop() or a broadcast tells the
// others. `trireme train` has rank 0 do that (train/guard.h).
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include <trireme/base/clock.h>
#include <trireme/exchange/on_nan.h>
#include <trireme/train/diagnosis.h>

namespace trireme::train {

/// What ends a run before its epochs have passed. The first that is reached does.
struct StopOptions {
  std::optional<double> accuracy{};  // test accuracy at the end of an epoch, more than 0 and up to 1
  std::optional<double> loss{};      // loss at the end of an epoch, of the test set or, without one, of the training
  std::optional<Seconds> time{};     // since training began, evaluation included, over all parts of a run that resumes
  int64_t steps = 0;                 // updates; 0: no limit. The same as Options::max_steps
  int plateau = 0;                   // epochs in which no loss was the lowest by more than kPlateau; 0: no limit
  bool nan = false;                  // a loss or gradient that is no number: OnNan::stop, said aloud

  bool any() const { return accuracy || loss || time || steps > 0 || plateau > 0; }
};

/// A loss counts as lower when it is by this part of it.
constexpr double kPlateau = 1e-3;

struct Decision {
  enum Kind : uint8_t { go_on, stop, skip, rollback };
  Kind kind = go_on;
  std::string policy{};  // "accuracy", "time", …
  std::string reason{};  // a sentence, without a full stop
  int64_t step = 0;      // after how many updates

  explicit operator bool() const { return kind != go_on; }
};
/// "stop", …
std::string name_of(Decision::Kind kind);

/// Where a run is.
struct Moment {
  int64_t step = 0;          // updates that are done
  double seconds = 0;        // of the run so far, those before it was resumed included
  bool epoch_ended = false;  // the last of the losses is new
};

/// Whether to stop now. Of several reasons the first, in the order of StopOptions.
Decision decide_stop(const Moment& now, std::span<const EpochLoss> epochs, const StopOptions& options);

/// Updates with a NaN so far.
struct NanHistory {
  int64_t step = 0;         // at which there was one
  std::string what{};       // "the loss became NaN on rank 1 at update 7"
  int in_a_row = 1;         // skipped, this one included
  int64_t in_all = 1;       // skipped or gone back for, this one included
  bool checkpoint = false;  // there is one to go back to
};

struct NanOptions {
  exchange::OnNan on_nan = exchange::OnNan::stop;
  int most_in_a_row = 10;  // skipped updates; that many end the run
  int most_rollbacks = 3;  // of a run; one more ends it
};

Decision decide_nan(const NanHistory& history, const NanOptions& options);

/// Why a run ended, as an error says it, is that a step took longer than it may: a decision to stop. `setting` is what
/// the limit is called, which such an error names; nothing where it does not.
Decision decide_timeout(int64_t step, const std::string& error, const std::string& setting);

/// The first sentence of an error, without its advice.
std::string first_sentence(const std::string& error);

/// "accuracy=0.9", "loss=0.1", "time=10m", "steps=100", "plateau=5", "nan": adds to `options`. Throws InvalidArgument
/// that begins with `what` for what is unknown, impossible, or there already.
void add_stop(const std::string& text, StopOptions& options, const std::string& what);
std::vector<std::string> stop_names();
/// As it would be given: "accuracy=0.9 time=10m"; "" for none.
std::string name_of(const StopOptions& options);

/// Throws InvalidArgument for impossible values, and for OnNan that contradicts `nan`.
void check(const StopOptions& options, exchange::OnNan on_nan);
/// The same for what only the data tell.
void check_data(const StopOptions& options, bool has_test, bool has_classes);

/// Which of many like sentences are worth a line: the first three, then those that are a power of two.
bool worth_a_line(int64_t number);

}  // namespace trireme::train

namespace trireme {
using train::check_data;
using train::decide_nan;
using train::decide_stop;
using train::decide_timeout;
using train::Decision;
using train::EpochLoss;
using train::Moment;
using train::NanHistory;
using train::NanOptions;
using train::StopOptions;
}  // namespace trireme
