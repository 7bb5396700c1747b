#include <algorithm>
#include <cmath>

#include <trireme/base/error.h>
#include <trireme/data/csv_samples.h>
#include <trireme/data/gather.h>

namespace trireme::data {

/// Calls visit(part, values) for the rows of this rank that have a label.
template <class Visit>
void CsvSamples::for_each_row(const Visit& visit) const {
  for (size_t p = 0; p < parts_.size(); p++)
    for (const float *row = parts_[p].values.data(), *end = row + parts_[p].values.size(); row < end; row += columns_)
      if (!std::isnan(row[label_])) visit(p, row);
}

int32_t CsvSamples::class_of(float label) const {
  if (schema_.task == Task::regress) return 0;
  if (class_values_.empty()) return static_cast<int32_t>(label);
  const auto at = std::lower_bound(class_values_.begin(), class_values_.end(), static_cast<double>(label));
  return static_cast<int32_t>(at - class_values_.begin());
}

/// Where each labelled row of this rank goes.
std::vector<size_t> CsvSamples::places() {
  std::vector<int64_t> mine(parts_.size());
  std::vector<int32_t> classes;
  for_each_row([&](size_t part, const float* row) { mine[part]++, classes.push_back(class_of(row[label_])); });
  const std::vector<int64_t> counts = gather_counts(group_, mine, "labelled rows of the CSV file");
  std::vector<size_t> all(parts_.size()), before(parts_.size());
  for (size_t i = 0; i < counts.size(); i++) {
    const size_t rank = i / parts_.size(), part = i % parts_.size();
    all[part] += static_cast<size_t>(counts[i]);
    if (rank < static_cast<size_t>(group_.rank())) before[part] += static_cast<size_t>(counts[i]);
  }
  for (size_t p = 0; p < parts_.size(); p++) {
    if (all[p] == 0) fail<InvalidArgument>("{}: no row has a label", parts_[p].path);
    rows_ += all[p];
    unlabelled_ += parts_[p].all_rows - all[p];
  }
  if (parts_.size() == 1) return split_places(classes, before[0]);
  trains_ = all[0];
  std::vector<size_t> places;
  for_each_row([&](size_t part, const float*) { places.push_back((part == 0 ? 0 : trains_) + before[part]++); });
  return places;
}

/// The same for rows of one file, some of which are for testing; `before` rows are in the shares of lower ranks.
std::vector<size_t> CsvSamples::split_places(const std::vector<int32_t>& classes, size_t before) {
  constexpr double kUsualTest = 0.2;
  const double part = options_.test.value_or(kUsualTest);
  const size_t tests = std::min(static_cast<size_t>(std::llround(part * static_cast<double>(rows_))), rows_ - 1);
  trains_ = rows_ - tests;
  std::vector<size_t> places(classes.size());
  if (tests == 0) {
    for (size_t i = 0; i < places.size(); i++) places[i] = before + i;
    return places;
  }
  const std::string mine(reinterpret_cast<const char*>(classes.data()), classes.size() * sizeof(int32_t));
  std::vector<int32_t> all(rows_);
  auto* next = reinterpret_cast<char*>(all.data());
  for (const std::string& theirs : gather_bytes(group_, mine, "classes of the CSV file"))
    next = std::copy(theirs.begin(), theirs.end(), next);
  const std::vector<bool> is_test = choose_tests(all, tests, options_.seed);
  const auto tests_before = std::count(is_test.begin(), is_test.begin() + static_cast<ptrdiff_t>(before), true);
  size_t test = trains_ + static_cast<size_t>(tests_before), train = before - static_cast<size_t>(tests_before);
  for (size_t i = 0; i < places.size(); i++) places[i] = is_test[before + i] ? test++ : train++;
  return places;
}

void CsvSamples::write_row(const float* row, size_t place) {
  float* next = inputs_ + place * width_;
  for (size_t i = 0; i < schema_.columns.size(); i++) {
    const Column& column = schema_.columns[i];
    const float value = row[i < label_ ? i : i + 1];
    if (column.kind == Column::Kind::number) *next = value;
    if (column.kind == Column::Kind::category && (!std::isnan(value) || column.missing))
      next[std::isnan(value) ? column.categories.size() : static_cast<size_t>(value)] = 1;
    next += column.inputs();
  }
  targets_[place] = row[label_];
  labels_[place] = class_of(row[label_]);
}

void CsvSamples::fill(const std::vector<size_t>& places) {
  const auto allocate = [&](size_t bytes, const char* what) { return allocate_shared(group_, rows_ * bytes, what); };
  inputs_ = reinterpret_cast<float*>(allocate(width_ * sizeof(float), "inputs"));
  targets_ = reinterpret_cast<float*>(allocate(sizeof(float), "targets"));
  labels_ = reinterpret_cast<int64_t*>(allocate(sizeof(int64_t), "labels"));
  size_t next = 0;
  for_each_row([&](size_t, const float* row) { write_row(row, places[next++]); });
  group_.barrier("rows of the CSV file");
}

CsvSamples::Numbers CsvSamples::numbers() {
  Numbers numbers;
  size_t input = 0;
  for (Column& column : schema_.columns) {
    if (column.kind == Column::Kind::number) numbers.columns.push_back(&column), numbers.inputs.push_back(input);
    input += column.inputs();
  }
  return numbers;
}

/// Means and deviations of the training samples. Each rank measures some columns over all rows.
void CsvSamples::measure() {
  const Numbers numbers = this->numbers();
  const size_t count = numbers.columns.size();
  const Share mine = share_of(count, group_.rank(), group_.size());
  std::vector<double> results(2 * count), seen(count);
  double *mean = results.data(), *square = mean + count;
  const auto for_each_value = [&](const auto& visit) {
    for (size_t row = 0; row < trains_; row++)
      for (size_t i = mine.begin; i < mine.end; i++)
        if (const float value = inputs_[row * width_ + numbers.inputs[i]]; !std::isnan(value)) visit(i, double{value});
  };
  for_each_value([&](size_t i, double value) { mean[i] += value, seen[i]++; });
  for (size_t i = mine.begin; i < mine.end; i++) mean[i] /= std::max(1.0, seen[i]);
  for_each_value([&](size_t i, double value) { square[i] += (value - mean[i]) * (value - mean[i]); });
  for (size_t i = mine.begin; i < mine.end; i++) square[i] /= std::max(1.0, seen[i]);
  group_.allreduce(results.data(), results.size(), DType::f64, Op::sum, "means of the CSV file");
  for (size_t i = 0; i < count; i++) {
    numbers.columns[i]->mean = mean[i];
    numbers.columns[i]->deviation = square[i] > 0 ? std::sqrt(square[i]) : 1;
  }
}

/// By each rank, over all rows.
void CsvSamples::measure_targets() {
  const auto count = static_cast<double>(trains_);
  double sum = 0, squares = 0;
  for (size_t row = 0; row < trains_; row++) sum += double{targets_[row]};
  schema_.mean = sum / count;
  for (size_t row = 0; row < trains_; row++) squares += std::pow(double{targets_[row]} - schema_.mean, 2);
  schema_.deviation = squares > 0 ? std::sqrt(squares / count) : 1;
}

/// In place; each rank has its share of the samples.
void CsvSamples::scale() {
  const Numbers numbers = this->numbers();
  const Share mine = share_of(rows_, group_.rank(), group_.size());
  const bool targets = schema_.task == Task::regress && schema_.normalised;
  for (size_t row = mine.begin; row < mine.end; row++) {
    float* inputs = inputs_ + row * width_;
    for (size_t i = 0; i < numbers.columns.size(); i++) {
      const Column& column = *numbers.columns[i];
      float& value = inputs[numbers.inputs[i]];
      value = scaled(column, schema_.normalised, std::isnan(value) ? static_cast<float>(column.mean) : value);
    }
    if (targets) targets_[row] = static_cast<float>((double{targets_[row]} - schema_.mean) / schema_.deviation);
  }
}

Dataset CsvSamples::view(const std::string& name, size_t begin, size_t count) const {
  return {.name = name,
          .count = count,
          .shape = {static_cast<int64_t>(width_)},
          .dtype = DType::f32,
          .inputs = reinterpret_cast<const std::byte*>(inputs_ + begin * width_),
          .task = schema_.task,
          .classes = static_cast<int>(schema_.classes.size()),
          .labels = labels_ + begin,
          .targets = targets_ + begin};
}

Splits CsvSamples::run() {
  fill(places());
  measure();
  if (schema_.task == Task::regress && schema_.normalised) measure_targets();
  group_.barrier("means of the CSV file");  // before anybody writes, everybody has measured
  scale();
  group_.barrier("samples of the CSV file");
  return {view(parts_[0].path, 0, trains_), view(parts_.back().path, trains_, rows_ - trains_), {}, {}};
}

}  // namespace trireme::data
