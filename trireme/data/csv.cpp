// CSV files as they are found in the world. Each rank reads the records that begin in its share of the bytes; what the
// columns are is decided from counts over all shares, so it does not depend on the number of ranks. Numbers are parsed
// once; the text is gone through a second time only where columns of text need their categories.
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <cmath>
#include <set>
#include <unordered_map>
#include <unordered_set>

#include <trireme/base/error.h>
#include <trireme/base/nearest.h>
#include <trireme/data/csv_samples.h>
#include <trireme/data/gather.h>
#include <trireme/data/records.h>

namespace trireme::data {
namespace {

struct TransparentHash {
  using is_transparent = void;
  size_t operator()(std::string_view text) const { return std::hash<std::string_view>{}(text); }
};
/// Texts, with numbers in the order of their first appearance here.
using Dictionary = std::unordered_map<std::string, size_t, TransparentHash, std::equal_to<>>;

class CsvReading {
 public:
  CsvReading(comm::shm::Communicator& group, const OpenOptions& options) : group_(group), options_(options) {}

  void add(const std::string& path);
  Splits finish();

 private:
  size_t columns() const { return parts_[0].preamble.names.size(); }
  const std::string& path() const { return parts_[0].path; }
  const std::string& name_of(size_t column) const { return parts_[0].preamble.names[column]; }
  std::string place_of(size_t column) const {
    return fmt::format("column {} ('{}')", column + 1, shown_cell(name_of(column)));
  }
  static size_t most(bool label) { return label ? kMostClasses : kMostCategories; }
  Column& use_of(size_t column) { return schema_.columns[column < label_ ? column : column - 1]; }

  void compare_names(const CsvPart& part) const;
  void add_up();
  void find_label();
  void choose_label();
  void choose_kinds();
  void refuse_errors(size_t column) const;
  void drop_row_numbers();
  void collect_texts();
  std::vector<std::set<std::string>> gather_texts();
  void number_texts(size_t column, std::vector<std::string> texts);
  void use_categories(size_t column, std::vector<std::string> texts);
  void use_text_label(std::vector<std::string> texts);
  LabelValues label_values();
  void use_number_label();
  void set_classes_from_numbers(const std::vector<double>& values);
  void refuse_one_value() const;
  void remark_on_missing(size_t unlabelled);

  comm::shm::Communicator& group_;
  const OpenOptions& options_;
  std::vector<CsvPart> parts_;  // training, and test if that is a file of its own
  std::vector<Tally> tallies_;  // of all ranks and parts
  std::vector<Dictionary> dictionaries_;
  std::vector<bool> is_text_;
  std::vector<double> class_values_;  // of labels that are numbers
  Schema schema_;
  size_t label_ = 0;
  std::vector<std::string> notes_;
};

void CsvReading::add(const std::string& path) {
  TextFile file(path);
  parts_.push_back(open_csv(file));
  for (const std::string& remark : parts_.back().preamble.remarks)
    notes_.push_back(fmt::format("{}: {}", path, remark));
  if (parts_.size() > 1) compare_names(parts_[1]);
  if (!options_.label.empty()) find_label();  // a wrong name need not wait for the rows
  read_records(group_, file, parts_.back());
}

void CsvReading::compare_names(const CsvPart& part) const {
  const Preamble &first = parts_[0].preamble, &second = part.preamble;
  const auto& names = second.names;
  const std::string wanted = options_.label.empty() ? first.names.back() : options_.label;
  if (first.header && second.header && std::find(names.begin(), names.end(), wanted) == names.end())
    fail<InvalidArgument>(
        "{} has no column '{}', which is the label in {}: a test needs labels too; its columns are: {}", part.path,
        wanted, path(), fmt::join(names, ", "));
  if (names.size() != first.names.size())
    fail<InvalidArgument>("{} has {} columns, but {} has {}", part.path, names.size(), path(), first.names.size());
  if (!first.header || !second.header || names == first.names) return;
  const size_t i =
      static_cast<size_t>(std::mismatch(names.begin(), names.end(), first.names.begin()).first - names.begin());
  fail<InvalidArgument>(
      "column {} of {} is '{}', but in {} it is '{}': both files need the same columns in the same order", i + 1,
      part.path, names[i], path(), first.names[i]);
}

// ---- what the columns are ----

/// What all ranks have counted in all parts.
void CsvReading::add_up() {
  tallies_.resize(columns());
  is_text_.resize(columns());
  int64_t comments = 0;
  for (const CsvPart& part : parts_) {
    for (size_t c = 0; c < columns(); c++) tallies_[c] += part.tallies[c];
    comments += static_cast<int64_t>(part.comments);
    if (part.all_rows == 0) fail<Corruption>("{} has a header but no rows", part.path);
    if (part.preamble.rows.value_or(part.all_rows) != part.all_rows)
      notes_.push_back(
          fmt::format("{}: line 1 promises {} rows, but there are {}", part.path, *part.preamble.rows, part.all_rows));
  }
  constexpr size_t kFields = sizeof(Tally) / sizeof(int64_t);
  group_.allreduce(tallies_.data(), kFields * columns(), DType::i64, Op::sum, "cells of the CSV file");
  group_.allreduce(&comments, 1, DType::i64, Op::sum, "comments in the CSV file");
  if (comments > 0)
    notes_.push_back(fmt::format("{} among the rows skipped", plural(static_cast<size_t>(comments), "comment line")));
}

void CsvReading::find_label() {
  const auto& names = parts_[0].preamble.names;
  label_ = names.size();
  for (size_t i = names.size(); i > 0; i--)
    if (names[i - 1] == options_.label) label_ = i - 1;
  for (size_t i = 0; i < names.size() && label_ == names.size(); i++)
    if (std::to_string(i) == options_.label) label_ = i;
  if (label_ == names.size())
    fail<InvalidArgument>("{} has no column '{}'{}; its columns are: {}", path(), options_.label,
                          did_you_mean(options_.label, names), fmt::join(names, ", "));
}

/// By default the last column that is not empty: rows may end with a delimiter.
void CsvReading::choose_label() {
  if (options_.label.empty()) {
    for (label_ = columns() - 1; label_ > 0 && kind_of(tallies_[label_]) == ColumnKind::empty;) label_--;
    if (parts_[0].preamble.header)
      notes_.push_back(fmt::format("the label is the last column, '{}'; --label takes another one", name_of(label_)));
  }
  if (kind_of(tallies_[label_]) == ColumnKind::empty)
    fail<InvalidArgument>("{}: {} is the label, but it is empty. --label takes another one", path(), place_of(label_));
  schema_.label = name_of(label_);
  schema_.label_column = label_;
}

void CsvReading::choose_kinds() {
  for (size_t c = 0; c < columns(); c++) {
    const ColumnKind kind = kind_of(tallies_[c]);
    if (kind == ColumnKind::numbers_with_errors || kind == ColumnKind::decimal_commas) refuse_errors(c);
    is_text_[c] = kind == ColumnKind::texts;
    if (c == label_) continue;
    const bool empty = kind == ColumnKind::empty;
    const auto use = empty ? Column::Kind::unused : is_text_[c] ? Column::Kind::category : Column::Kind::number;
    schema_.columns.push_back({.name = name_of(c), .kind = use});
    if (empty && !name_of(c).empty()) notes_.push_back(fmt::format("{} is empty and left out", place_of(c)));
  }
}

/// Only a rank that has read such a cell can name it; the others lose that rank.
void CsvReading::refuse_errors(size_t column) const {
  for (const CsvPart& part : parts_) {
    const FirstText& first = part.first_texts[column];
    if (first.line == 0) continue;
    const std::string what =
        fmt::format("{}, line {}, {}: '{}'", part.path, first.line, place_of(column), shown_cell(first.text));
    if (kind_of(tallies_[column]) == ColumnKind::decimal_commas)
      fail<InvalidArgument>("{} has a comma where a point belongs. Write 1.5, and no commas between thousands", what);
    fail<Corruption>("{} is not a number, but {} cells of the column are. A missing value is empty, NA, NaN, null or ?",
                     what, tallies_[column].numbers);
  }
}

/// A first column that counts the rows of the training file tells nothing, or too much where they are in the order of
/// classes.
void CsvReading::drop_row_numbers() {
  const CsvPart& part = parts_[0];
  constexpr size_t kFewRows = 10;
  if (label_ == 0 || kind_of(tallies_[0]) != ColumnKind::numbers || tallies_[0].missing > 0) return;
  if (part.all_rows < kFewRows || columns() < 3 || !names_row_numbers(name_of(0), part.preamble.header)) return;
  int64_t wrong[2] = {0, 0};  // cells that do not fit a count from 0; from 1
  for (size_t row = 0; row < part.rows; row++)
    for (size_t from : {0, 1})
      wrong[from] += part.values[row * columns()] == static_cast<float>(part.rows_before + row + from) ? 0 : 1;
  group_.allreduce(wrong, 2, DType::i64, Op::sum, "row numbers of the CSV file");
  if (wrong[0] > 0 && wrong[1] > 0) return;
  schema_.columns[0].kind = Column::Kind::unused;
  notes_.push_back(fmt::format("{} numbers the rows and is left out", place_of(0)));
}

// ---- columns of text ----

/// Gives the texts of every column of text their numbers.
void CsvReading::collect_texts() {
  if (std::find(is_text_.begin(), is_text_.end(), true) == is_text_.end()) return;
  dictionaries_.resize(columns());
  std::vector<Cell> cells;
  double ignored = 0;
  for (CsvPart& part : parts_) {
    RecordReader reader(part.text, part.preamble.delimiter, part.path, part.first_line);
    for (size_t row = 0; reader.next(cells); row++)
      for (size_t c = 0; c < columns(); c++) {
        if (!is_text_[c] || read_cell(cells[c], ignored) == CellKind::missing) continue;
        Dictionary& known = dictionaries_[c];
        auto found = known.find(cells[c].text);
        if (found == known.end() && known.size() <= most(c == label_))
          found = known.emplace(cells[c].text, known.size()).first;
        if (found != known.end()) part.values[row * columns() + c] = static_cast<float>(found->second);
      }
  }
  const std::vector<std::set<std::string>> all = gather_texts();
  for (size_t c = 0; c < columns(); c++)
    if (is_text_[c]) number_texts(c, {all[c].begin(), all[c].end()});
}

/// By column, the texts of all ranks.
std::vector<std::set<std::string>> CsvReading::gather_texts() {
  nlohmann::json mine = nlohmann::json::array();
  for (const Dictionary& known : dictionaries_) {
    nlohmann::json texts = nlohmann::json::array();
    for (const auto& [text, number] : known) texts.push_back(as_utf8(text));
    mine.push_back(std::move(texts));
  }
  std::vector<std::set<std::string>> all(columns());
  for (const std::string& theirs : gather_bytes(group_, mine.dump(), "categories of the CSV file")) {
    const auto lists = nlohmann::json::parse(theirs);
    for (size_t c = 0; c < columns(); c++)
      for (const auto& text : lists[c]) all[c].insert(text.get<std::string>());
  }
  return all;
}

/// From the numbers that texts have in this rank to those that they have in all.
void CsvReading::number_texts(size_t column, std::vector<std::string> texts) {
  std::vector<float> numbers(dictionaries_[column].size());
  for (const auto& [text, number] : dictionaries_[column])
    numbers[number] = static_cast<float>(std::lower_bound(texts.begin(), texts.end(), as_utf8(text)) - texts.begin());
  for (CsvPart& part : parts_)
    for (size_t at = column; at < part.values.size(); at += columns())
      if (!std::isnan(part.values[at])) part.values[at] = numbers[static_cast<size_t>(part.values[at])];
  column == label_ ? use_text_label(std::move(texts)) : use_categories(column, std::move(texts));
}

/// "891 different texts in 891 rows"
std::string many_texts(size_t texts, size_t most, size_t rows) {
  const std::string count = texts > most ? fmt::format("more than {}", most) : std::to_string(texts);
  return fmt::format("{} different texts in {} rows", count, rows);
}

void CsvReading::use_categories(size_t column, std::vector<std::string> texts) {
  Column& use = use_of(column);
  const size_t rows = parts_[0].all_rows;
  if (too_many(texts.size(), kMostCategories, rows)) {
    use.kind = Column::Kind::unused;
    notes_.push_back(fmt::format(
        "{} is left out: {}, as ids or sentences have. To use it, make numbers or at most {} categories of it",
        place_of(column), many_texts(texts.size(), kMostCategories, rows), kMostCategories));
    return;
  }
  use.categories = std::move(texts);
  use.missing = tallies_[column].missing > 0;
  notes_.push_back(fmt::format("{} has {} categories, with one input each{}", place_of(column), use.categories.size(),
                               use.missing ? ", and one more for missing values" : ""));
}

void CsvReading::use_text_label(std::vector<std::string> texts) {
  if (options_.task == Task::regress)
    fail<InvalidArgument>("{}: {} is text, and not a number to predict", path(), place_of(label_));
  if (const size_t rows = parts_[0].all_rows; too_many(texts.size(), kMostClasses, rows))
    fail<InvalidArgument>("{}: {} is the label, but has {}: no classes. --label takes another column, of: {}", path(),
                          place_of(label_), many_texts(texts.size(), kMostClasses, rows),
                          fmt::join(parts_[0].preamble.names, ", "));
  if (texts.size() < 2) refuse_one_value();
  schema_.task = Task::classify;
  schema_.classes = std::move(texts);
}

// ---- labels that are numbers ----

LabelValues CsvReading::label_values() {
  LabelValues label{.rows = static_cast<size_t>(tallies_[label_].numbers)};
  std::unordered_set<double> seen;
  for (const CsvPart& part : parts_)
    for (size_t at = label_; at < part.values.size() && seen.size() <= kMostClasses; at += columns())
      if (!std::isnan(part.values[at])) seen.insert(double{part.values[at]});
  std::set<double> values(seen.begin(), seen.end());
  std::vector<double> list(values.begin(), values.end());
  const std::string mine(reinterpret_cast<const char*>(list.data()), list.size() * sizeof(double));
  for (const std::string& theirs : gather_bytes(group_, mine, "labels of the CSV file")) {
    list.resize(theirs.size() / sizeof(double));
    std::copy(theirs.begin(), theirs.end(), reinterpret_cast<char*>(list.data()));
    values.insert(list.begin(), list.end());
  }
  label.values.assign(values.begin(), values.end());
  label.whole = std::all_of(values.begin(), values.end(), [](double value) { return value == std::floor(value); });
  return label;
}

void CsvReading::use_number_label() {
  const LabelValues label = label_values();
  if (label.values.size() < 2) refuse_one_value();
  if (options_.task == Task::classify && (!label.whole || label.values.size() > kMostClasses))
    fail<InvalidArgument>("cross-entropy needs classes, but {} of {} has {}", place_of(label_), path(),
                          label.whole ? "too many different numbers" : "numbers that are not whole");
  const TaskChoice choice = choose_task(label, name_of(label_), options_.task);
  schema_.task = choice.task;
  if (choice.task == Task::classify) set_classes_from_numbers(label.values);
  if (!choice.reason.empty()) notes_.push_back(choice.reason);
}

/// A class is named by its number, or by the line of counts that began the file.
void CsvReading::set_classes_from_numbers(const std::vector<double>& values) {
  const std::vector<std::string>& names = parts_[0].preamble.classes;
  const bool named = names.size() >= 2 && label_ + 1 == columns() && values.front() >= 0 &&
                     values.back() < static_cast<double>(names.size());
  class_values_ = values;
  if (named) {
    schema_.classes = names;
    class_values_.resize(names.size());
    for (size_t i = 0; i < names.size(); i++) class_values_[i] = static_cast<double>(i);
  } else {
    for (const double value : values) schema_.classes.push_back(fmt::format("{:.0f}", value));
  }
}

void CsvReading::refuse_one_value() const {
  std::string hint;
  for (const std::string& name : parts_[0].preamble.names)
    for (const char* usual : {"label", "class", "target", "y", "Label", "Class", "Target", "species", "Species"})
      if (name == usual && name != name_of(label_)) hint = fmt::format(": perhaps --label {}", name);
  fail<InvalidArgument>(
      "{}: {} is the label, but it has the same value in all rows: there is nothing to learn. --label takes another "
      "column{}",
      path(), place_of(label_), hint);
}

// ---- the end ----

void CsvReading::remark_on_missing(size_t unlabelled) {
  constexpr size_t kMostNamed = 6;
  std::vector<std::string> where;
  int64_t sum = 0;
  for (size_t i = 0; i < schema_.columns.size(); i++) {
    const int64_t missing = tallies_[i < label_ ? i : i + 1].missing;
    if (missing == 0 || schema_.columns[i].kind == Column::Kind::unused) continue;
    sum += missing;
    where.push_back(fmt::format("{} in '{}'", missing, schema_.columns[i].name));
  }
  if (where.size() > kMostNamed) where = {fmt::format("in {} columns", where.size())};
  if (sum > 0)
    notes_.push_back(fmt::format(
        "{} missing ({}): numbers take the mean of the training rows, categories count missing as one of them",
        plural(static_cast<size_t>(sum), "value"), fmt::join(where, ", ")));
  if (unlabelled > 0) notes_.push_back(fmt::format("{} without a label left out", plural(unlabelled, "row")));
}

Splits CsvReading::finish() {
  add_up();
  choose_label();
  choose_kinds();
  drop_row_numbers();
  collect_texts();
  if (!is_text_[label_]) use_number_label();
  if (schema_.inputs() == 0) fail<InvalidArgument>("{}: no column is left to learn from", path());
  for (CsvPart& part : parts_) part.text = {};  // as large as the samples, which are made next
  schema_.normalised = options_.normalize.value_or(true);
  CsvSamples samples(group_, options_, parts_, class_values_, schema_);
  Splits splits = samples.run();
  remark_on_missing(samples.unlabelled());
  notes_.push_back(
      fmt::format("{}; {} training and {} test rows", describe(schema_), splits.train.count, splits.test.count));
  splits.notes = std::move(notes_);
  splits.schema = std::move(schema_);
  return splits;
}

}  // namespace

Splits read_csv(comm::shm::Communicator& group, const std::string& train, const std::string& test,
                const OpenOptions& options) {
  CsvReading reading(group, options);
  reading.add(train);
  if (!test.empty()) reading.add(test);
  return reading.finish();
}

}  // namespace trireme::data
