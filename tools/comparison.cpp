#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <cctype>
#include <cmath>
#include <fstream>

#include <trireme/base/error.h>

#include "comparison.h"
#include "with_commas.h"

namespace trireme::tools {
namespace {

using nlohmann::json;

/// Absent, or null for what was no number: nothing.
std::optional<double> number(const json& object, const char* key) {
  const auto found = object.find(key);
  if (found == object.end() || !found->is_number()) return std::nullopt;
  return found->get<double>();
}

std::optional<double> value_of(const EpochRow& row, Measure measure) {
  return measure == Measure::accuracy ? row.test_accuracy : measure == Measure::test_loss ? row.test_loss : row.loss;
}

std::string text_of(const std::optional<double>& value, const char* format) {
  return value ? fmt::format(fmt::runtime(format), *value) : "-";
}

/// Cells in columns: the first to the left, the others to the right.
using Row = std::vector<std::string>;

size_t width_of(const std::vector<Row>& rows, size_t column) {
  size_t width = 0;
  for (const Row& row : rows)
    if (column < row.size()) width = std::max(width, row[column].size());
  return width;
}

Row cells_of(const ModeResult& r, Measure measure, int first_epoch, int epochs, std::optional<double> target) {
  Row row = {r.mode, with_commas(r.samples_per_second()), text_of(r.staleness_mean, "{:.2f}"),
             text_of(r.staleness_max, "{:.0f}"), r.dropped ? with_commas(*r.dropped) : "-"};
  for (int epoch = first_epoch; epoch <= epochs; epoch++) {
    const auto found =
        std::find_if(r.epochs.begin(), r.epochs.end(), [&](const EpochRow& e) { return e.epoch == epoch; });
    row.push_back(found == r.epochs.end() ? "" : text_of(value_of(*found, measure), "{:.4f}"));
  }
  row.push_back(r.epochs.empty() ? "-" : text_of(value_of(r.epochs.back(), measure), "{:.4f}"));
  if (target) row.push_back(text_of(seconds_to(r, measure, *target), "{:.2f}"));
  return row;
}

/// All rows from the header on, with epochs from `first_epoch`.
std::vector<Row> rows_of(const std::vector<ModeResult>& results, Measure measure, int first_epoch, int epochs,
                         std::optional<double> target) {
  Row header = {"mode", "samples/s", "staleness", "max", "dropped"};
  for (int epoch = first_epoch; epoch <= epochs; epoch++) header.push_back(fmt::format("ep {}", epoch));
  header.push_back("final");
  if (target) header.push_back(fmt::format("s to {:g}", *target));
  std::vector<Row> rows = {header};
  for (const ModeResult& r : results)
    rows.push_back(r.error.empty() ? cells_of(r, measure, first_epoch, epochs, target) : Row{r.mode});
  return rows;
}

size_t total_width(const std::vector<Row>& rows) {
  size_t width = 0;
  for (size_t column = 0; column < rows[0].size(); column++) width += width_of(rows, column) + (column > 0 ? 2 : 0);
  return width;
}

/// What the parameter servers have counted for all their models; nothing without servers.
void read_servers(const json& report, ModeResult& result) {
  double gradients = 0, staleness = 0;
  const json all = report.value("metrics", json::object());
  for (const auto& [member, metrics] : all.items()) {
    if (!member.starts_with("server ") || !metrics.is_object()) continue;
    for (const json& model : metrics) {
      if (!model.is_object() || !model.contains("staleness")) continue;
      const json& seen = model["staleness"];
      gradients += number(seen, "count").value_or(0);
      staleness += number(seen, "sum").value_or(0);
      result.staleness_max = std::max(result.staleness_max.value_or(0), number(seen, "max").value_or(0));
      result.dropped = result.dropped.value_or(0) + number(model, "dropped").value_or(0);
    }
  }
  if (result.staleness_max) result.staleness_mean = gradients > 0 ? staleness / gradients : 0;
}

}  // namespace

double ModeResult::samples_per_second() const {
  double samples = 0, seconds = 0;
  for (const EpochRow& e : epochs) samples += e.samples_per_second * e.duration, seconds += e.duration;
  return seconds > 0 ? samples / seconds : 0;
}

ModeResult read_report(const std::string& mode, const std::string& file) {
  std::ifstream in(file);
  if (!in)
    fail<IoError>("cannot read the report {}: {}. Rank 0 writes it: with --hosts, this host must be the first of them",
                  file, errno_text());
  const json report = json::parse(in, nullptr, false);
  if (!report.is_object() || !report.contains("epochs") || !report["epochs"].is_array())
    fail<Corruption>("{} is not a report of `trireme train`", file);
  ModeResult result{.mode = mode};
  double seconds = 0;
  for (const json& epoch : report["epochs"]) {
    const auto number_of = number(epoch, "epoch"), duration = number(epoch, "seconds"),
               rate = number(epoch, "samples_per_second");
    if (!number_of || !duration || !rate)
      fail<Corruption>("{}: an epoch lacks its number, seconds or samples_per_second", file);
    seconds += *duration;
    result.epochs.push_back({.epoch = static_cast<int>(*number_of),
                             .seconds = seconds,
                             .duration = *duration,
                             .samples_per_second = *rate,
                             .loss = number(epoch, "loss"),
                             .test_loss = number(epoch, "test_loss"),
                             .test_accuracy = number(epoch, "test_accuracy")});
  }
  if (const auto warning = report.find("warning"); warning != report.end() && warning->is_string())
    result.warning = warning->get<std::string>();
  read_servers(report, result);
  return result;
}

Measure measure_of(const std::vector<ModeResult>& results) {
  for (Measure measure : {Measure::accuracy, Measure::test_loss})
    for (const ModeResult& r : results)
      for (const EpochRow& row : r.epochs)
        if (value_of(row, measure)) return measure;
  const bool none = std::all_of(results.begin(), results.end(), [](const ModeResult& r) { return r.epochs.empty(); });
  return none ? Measure::accuracy : Measure::loss;
}

std::string name_of(Measure measure) {
  return measure == Measure::accuracy ? "test accuracy" : measure == Measure::test_loss ? "test loss" : "training loss";
}

std::optional<double> seconds_to(const ModeResult& result, Measure measure, double target) {
  for (const EpochRow& row : result.epochs) {
    const auto value = value_of(row, measure);
    if (value && (measure == Measure::accuracy ? *value >= target : *value <= target)) return row.seconds;
  }
  return std::nullopt;
}

std::optional<double> unsteadiness(const ModeResult& result) {
  constexpr double kTooMuch = 2;       // a quiet machine was seen to stay below 1.5
  constexpr double kLongEnough = 0.1;  // seconds
  double slowest = INFINITY, fastest = 0;
  for (const EpochRow& e : result.epochs) {
    if (e.duration < kLongEnough) continue;
    slowest = std::min(slowest, e.samples_per_second);
    fastest = std::max(fastest, e.samples_per_second);
  }
  if (fastest <= kTooMuch * slowest) return std::nullopt;
  return fastest / slowest;
}

std::string table_of(const std::vector<ModeResult>& results, std::optional<double> target, size_t width) {
  constexpr int kLeastEpochs = 3;
  const Measure measure = measure_of(results);
  int epochs = 0, first = 1;
  for (const ModeResult& r : results)
    for (const EpochRow& e : r.epochs) epochs = std::max(epochs, e.epoch);
  std::vector<Row> rows = rows_of(results, measure, first, epochs, target);
  while (total_width(rows) > width && first + kLeastEpochs <= epochs)
    rows = rows_of(results, measure, ++first, epochs, target);

  std::string text;
  for (size_t i = 0; i < rows.size(); i++) {
    text += fmt::format("{:<{}}", rows[i][0], width_of(rows, 0));
    for (size_t column = 1; column < rows[i].size(); column++)
      text += fmt::format("  {:>{}}", rows[i][column], width_of(rows, column));
    if (i > 0 && !results[i - 1].error.empty()) text += "  failed: " + results[i - 1].error;
    text += '\n';
  }
  return text;
}

std::string csv_of(const std::vector<ModeResult>& results) {
  const auto cell = [](const std::optional<double>& value) { return value ? fmt::format("{}", *value) : ""; };
  const auto name = [](const std::string& mode) {
    return mode.find(',') == std::string::npos ? mode : fmt::format("\"{}\"", mode);
  };
  std::string text =
      "mode,epoch,seconds,samples_per_second,loss,test_loss,test_accuracy,staleness_mean,staleness_max,dropped\n";
  for (const ModeResult& r : results)
    for (const EpochRow& e : r.epochs)
      text += fmt::format("{},{},{},{},{},{},{},{},{},{}\n", name(r.mode), e.epoch, e.seconds, e.samples_per_second,
                          cell(e.loss), cell(e.test_loss), cell(e.test_accuracy), cell(r.staleness_mean),
                          cell(r.staleness_max), cell(r.dropped));
  return text;
}

Plot plot_of(const std::vector<ModeResult>& results, std::optional<double> target, const std::string& subtitle) {
  const Measure measure = measure_of(results);
  std::string name = name_of(measure);
  Plot plot{.subtitle = subtitle, .x_label = "seconds of training", .y_label = name, .level = target};
  name[0] = static_cast<char>(std::toupper(name[0]));
  plot.title = name + " against time, by synchronisation";
  for (const ModeResult& r : results) {
    if (!r.error.empty()) continue;
    Line line{.name = r.mode, .note = r.own};
    for (const EpochRow& e : r.epochs)
      if (const auto value = value_of(e, measure)) line.points.emplace_back(e.seconds, *value);
    plot.lines.push_back(std::move(line));
  }
  return plot;
}

}  // namespace trireme::tools
