#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <limits>
#include <optional>
#include <unordered_map>

#include <trireme/base/error.h>
#include <trireme/base/nearest.h>
#include <trireme/data/columns.h>
#include <trireme/data/preamble.h>
#include <trireme/data/records.h>
#include <trireme/data/rows.h>
#include <trireme/data/text.h>

namespace trireme::data {
namespace {

constexpr size_t kAbsent = std::numeric_limits<size_t>::max();
constexpr size_t kMostNamed = 10;  // in a message

/// Where a file has what the model needs.
struct Places {
  std::vector<size_t> columns;  // by column of the schema; kAbsent: an unused one that is not there
  std::optional<size_t> label;
};

/// "'a', 'b' and 3 more"
std::string quoted(const std::vector<std::string>& names) {
  std::vector<std::string> shown;
  for (size_t i = 0; i < std::min(names.size(), kMostNamed); i++)
    shown.push_back(fmt::format("'{}'", shown_cell(names[i])));
  const std::string rest = names.size() > kMostNamed ? fmt::format(" and {} more", names.size() - kMostNamed) : "";
  return fmt::format("{}{}", fmt::join(shown, ", "), rest);
}

size_t place_in_training_file(const Schema& schema, size_t column) {
  return column < schema.label_column ? column : column + 1;
}

/// Columns without names are called by their places.
bool has_names(const Schema& schema) {
  for (size_t i = 0; i < schema.columns.size(); i++)
    if (schema.columns[i].name != std::to_string(place_in_training_file(schema, i))) return true;
  return false;
}

/// In the order of the training file, with the label in its place or without it; nothing when the numbers differ.
std::optional<Places> by_place(const Schema& schema, size_t width) {
  if (width != schema.columns.size() && width != schema.columns.size() + 1) return std::nullopt;
  Places places;
  const bool labelled = width > schema.columns.size();
  for (size_t i = 0; i < schema.columns.size(); i++)
    places.columns.push_back(labelled ? place_in_training_file(schema, i) : i);
  if (labelled) places.label = schema.label_column;
  return places;
}

/// Whether these are the columns of the training file in its order: then names may come twice.
bool same_names(const Schema& schema, const Places& places, const std::vector<std::string>& names) {
  for (size_t i = 0; i < places.columns.size(); i++)
    if (names[places.columns[i]] != schema.columns[i].name) return false;
  return !places.label || names[*places.label] == schema.label;
}

class Search {
 public:
  Search(const Schema& schema, const Preamble& preamble, const std::string& path)
      : schema_(schema), names_(preamble.names), header_(preamble.header), path_(path) {}

  Places run(std::vector<std::string>& notes) const {
    const std::optional<Places> placed = by_place(schema_, names_.size());
    if (!header_ || !has_names(schema_)) {
      if (!placed) wrong_width();
      if (has_names(schema_))
        notes.push_back(
            fmt::format("{} has no header: its columns are taken in the order of the training file", path_));
      return *placed;
    }
    return placed && same_names(schema_, *placed, names_) ? *placed : by_name(notes);
  }

 private:
  [[noreturn]] void wrong_width() const {
    fail<InvalidArgument>(
        "{} has {} columns; the model was trained on {} and the label '{}', which may be missing: {} or {} are "
        "expected",
        path_, names_.size(), schema_.columns.size(), schema_.label, schema_.columns.size(),
        schema_.columns.size() + 1);
  }

  size_t find(const std::string& name) const {
    const auto found = std::find(names_.begin(), names_.end(), name);
    return found == names_.end() ? kAbsent : static_cast<size_t>(found - names_.begin());
  }

  Places by_name(std::vector<std::string>& notes) const {
    Places places;
    std::vector<std::string> missing, strange;
    std::vector<bool> known(names_.size());
    for (const Column& column : schema_.columns) {
      const size_t place = find(column.name);
      places.columns.push_back(place);
      if (place != kAbsent) known[place] = true;
      if (place == kAbsent && column.kind != Column::Kind::unused) missing.push_back(column.name);
    }
    if (const size_t place = find(schema_.label); place != kAbsent) places.label = place, known[place] = true;
    if (!missing.empty())
      fail<InvalidArgument>("{} has no column {}, which the model was trained on{}; its columns are: {}", path_,
                            quoted(missing), missing.size() == 1 ? did_you_mean(missing[0], names_) : "",
                            quoted(names_));
    for (size_t i = 0; i < names_.size(); i++)
      if (!known[i]) strange.push_back(names_[i]);
    if (!strange.empty()) notes.push_back(fmt::format("columns that the model does not know: {}", quoted(strange)));
    return places;
  }

  const Schema& schema_;
  const std::vector<std::string>& names_;
  bool header_;
  const std::string& path_;
};

/// Labels as training saw them.
class Labels {
 public:
  Labels(const Schema& schema, const Preamble& preamble) : schema_(schema) {
    for (size_t i = 0; i < schema.classes.size(); i++) numbers_.emplace(schema.classes[i], static_cast<int64_t>(i));
    counted_ = !preamble.classes.empty() && preamble.classes == schema.classes;
  }

  void add(std::string_view cell, const RecordReader& reader, Rows& rows) const {
    double value = 0;
    const CellKind kind = read_cell(cell, value);
    if (schema_.task == Task::regress)
      rows.targets.push_back(target(cell, kind, value, reader));
    else
      rows.labels.push_back(kind == CellKind::missing ? -1 : class_of(cell, kind, value, reader));
  }

 private:
  float target(std::string_view cell, CellKind kind, double value, const RecordReader& reader) const {
    if (kind == CellKind::missing) return std::numeric_limits<float>::quiet_NaN();
    if (kind == CellKind::text)
      fail<InvalidArgument>("{}: the label '{}' is not a number, but the model predicts one", reader.where(),
                            shown_cell(cell));
    return static_cast<float>((double{static_cast<float>(value)} - schema_.mean) / schema_.deviation);
  }

  /// By name; numbers as training names them, or by the names of a count line.
  int64_t class_of(std::string_view cell, CellKind kind, double value, const RecordReader& reader) const {
    if (const auto found = numbers_.find(as_utf8(cell)); found != numbers_.end()) return found->second;
    if (kind == CellKind::number && value == std::floor(value)) {
      if (const auto found = numbers_.find(fmt::format("{:.0f}", value)); found != numbers_.end()) return found->second;
      if (counted_ && value >= 0 && value < static_cast<double>(schema_.classes.size()))
        return static_cast<int64_t>(value);
    }
    fail<InvalidArgument>("{}: the label '{}' is none of the classes that the model knows: {}", reader.where(),
                          shown_cell(cell), quoted(schema_.classes));
  }

  const Schema& schema_;
  std::unordered_map<std::string, int64_t> numbers_;
  bool counted_ = false;  // the file's labels are numbers of these classes
};

void read_all(RecordReader& reader, const Schema& schema, const Preamble& preamble, const Places& places, Rows& rows) {
  const size_t inputs = schema.inputs();
  const Labels labels(schema, preamble);
  std::vector<Cell> cells;
  std::vector<std::string_view> row(schema.columns.size());
  for (; reader.next(cells); rows.count++) {
    if (cells.size() != preamble.names.size())
      fail<Corruption>("{}: {} cells, but {} {}", reader.where(), cells.size(),
                       preamble.header ? "the header has" : "the first row has", preamble.names.size());
    for (size_t i = 0; i < row.size(); i++)
      row[i] = places.columns[i] == kAbsent ? std::string_view() : cells[places.columns[i]].text;
    rows.inputs.resize(rows.inputs.size() + inputs);
    try {
      schema.encode(row, rows.inputs.data() + rows.count * inputs);
    } catch (const InvalidArgument& error) {
      fail<InvalidArgument>("{}: {}", reader.where(), error.what());
    }
    if (places.label) labels.add(cells[*places.label].text, reader, rows);
  }
}

}  // namespace

std::vector<uint32_t> Rows::with_label() const {
  std::vector<uint32_t> all;
  for (uint32_t i = 0; labelled && i < count; i++)
    if (labels.empty() ? !std::isnan(targets[i]) : labels[i] >= 0) all.push_back(i);
  return all;
}

bool Rows::is_of(const Split& split) const {
  return std::filesystem::path(path).filename() == split.file && with_label().size() == split.rows;
}

std::vector<uint32_t> Rows::part(const Split& split, bool test) const {
  const std::vector<uint32_t> all = with_label();
  if (all.size() != split.rows)
    fail<InvalidArgument>(
        "{} has {} rows with a label, but the model was trained and tested on {} of {}: which rows were for testing is "
        "known of that file alone. Use all rows",
        path, all.size(), split.rows, split.file);
  std::vector<int32_t> classes;
  for (const uint32_t row : all) classes.push_back(labels.empty() ? 0 : static_cast<int32_t>(labels[row]));
  const std::vector<bool> is_test = choose_tests(classes, split.tests, split.seed);
  std::vector<uint32_t> chosen;
  for (size_t i = 0; i < all.size(); i++)
    if (is_test[i] == test) chosen.push_back(all[i]);
  return chosen;
}

Dataset Rows::view(const Schema& schema) const {
  return {.name = path,
          .count = count,
          .shape = {static_cast<int64_t>(schema.inputs())},
          .dtype = DType::f32,
          .inputs = reinterpret_cast<const std::byte*>(inputs.data()),
          .task = schema.task,
          .classes = static_cast<int>(schema.classes.size()),
          .labels = labels.empty() ? nullptr : labels.data(),
          .targets = targets.empty() ? nullptr : targets.data()};
}

Rows read_rows(const std::string& path, const Schema& schema) {
  TextFile file(path);
  const Preamble preamble = read_preamble(file, 1);
  Rows rows{.path = path};
  for (const std::string& remark : preamble.remarks) rows.notes.push_back(fmt::format("{}: {}", path, remark));
  const Places places = Search(schema, preamble, path).run(rows.notes);
  rows.labelled = places.label.has_value();
  const std::string text = file.read(preamble.begin, file.size());
  RecordReader reader(text, preamble.delimiter, path, preamble.lines + 1);
  read_all(reader, schema, preamble, places, rows);
  if (rows.count == 0) fail<Corruption>("{} has a header but no rows", path);
  if (rows.count > std::numeric_limits<uint32_t>::max())
    fail<InvalidArgument>("{} has {} rows, more than can be numbered: cut it", path, rows.count);
  return rows;
}

}  // namespace trireme::data
