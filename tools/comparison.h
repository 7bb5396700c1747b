#pragma once
// What `trireme compare` found out: read from reports, shown as a table, as CSV and as a plot. Pure functions, but for
// reading a report.
#include <optional>
#include <string>
#include <vector>

#include "plot.h"

namespace trireme::tools {

struct EpochRow {
  int epoch = 0;        // from 1
  double seconds = 0;   // of training, from its start to the end of this epoch; tests between epochs do not count
  double duration = 0;  // of this epoch, in seconds
  double samples_per_second = 0;
  std::optional<double> loss, test_loss, test_accuracy;
};

struct ModeResult {
  std::string mode;
  std::string own;      // settings that this mode alone had, such as "lr=0.02"
  std::string error;    // why there is nothing else, in one line; "" when the training came to its end
  std::string warning;  // what `train` found wrong with its losses, or ""
  std::vector<EpochRow> epochs;
  std::optional<double> staleness_mean, staleness_max,
      dropped;  // of the whole run, staleness in updates; only modes with servers have them

  double samples_per_second() const;  // of the whole run
};

/// Reads what `trireme train --report` wrote. Throws IoError or Corruption.
ModeResult read_report(const std::string& mode, const std::string& file);

/// What is compared: accuracy where the task has one, or else the best there is.
enum class Measure { accuracy, test_loss, loss };
Measure measure_of(const std::vector<ModeResult>& results);
std::string name_of(Measure measure);

/// Seconds of training at the end of the first epoch that reached the target: nobody looked in between, so nothing is
/// interpolated.
std::optional<double> seconds_to(const ModeResult& result, Measure measure, double target);

/// How many times faster the fastest epoch was than the slowest, when that is too much for the speeds to be compared;
/// nothing for runs that are steady, or too short to tell. Modes run one after the other: what else uses the machine
/// meanwhile slows one and not the next.
std::optional<double> unsteadiness(const ModeResult& result);

/// One line per mode, at most `width` columns where the names allow it: early epochs are left out for that.
std::string table_of(const std::vector<ModeResult>& results, std::optional<double> target, size_t width);

/// A header, then one row per mode and epoch. What a run does not have is an empty cell; staleness and dropped are
/// those of the whole run in every row.
std::string csv_of(const std::vector<ModeResult>& results);

/// The measure against seconds of training. Modes that failed are left out.
Plot plot_of(const std::vector<ModeResult>& results, std::optional<double> target, const std::string& subtitle);

}  // namespace trireme::tools
