#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cctype>

#include <trireme/data/columns.h>
#include <trireme/data/sampler.h>

namespace trireme::data {
namespace {

constexpr size_t kFewValues = 20, kMostNumbered = 100, kRowsForEach = 10;

}  // namespace

Tally& Tally::operator+=(const Tally& other) {
  numbers += other.numbers;
  missing += other.missing;
  texts += other.texts;
  commas += other.commas;
  return *this;
}

ColumnKind kind_of(const Tally& tally) {
  if (tally.numbers + tally.texts == 0) return ColumnKind::empty;
  if (tally.texts == 0) return ColumnKind::numbers;
  if (tally.commas == tally.texts) return ColumnKind::decimal_commas;
  const bool few = static_cast<double>(tally.texts) < kFewTexts * static_cast<double>(tally.numbers + tally.texts);
  return few ? ColumnKind::numbers_with_errors : ColumnKind::texts;
}

bool too_many(size_t different, size_t most, size_t rows) {
  constexpr size_t kAlwaysFew = 20;
  return different > most || (different > kAlwaysFew && different > rows / 2);
}

bool names_row_numbers(const std::string& name, bool header) {
  if (!header || name.empty()) return true;
  std::string lower = name;
  std::transform(lower.begin(), lower.end(), lower.begin(), [](unsigned char c) { return std::tolower(c); });
  constexpr std::array kNames = {"index", "unnamed: 0", "row", "rownames", "row_names", "rownum", "no", "nr", "number"};
  return lower.ends_with("id") || std::find(kNames.begin(), kNames.end(), lower) != kNames.end();
}

TaskChoice choose_task(const LabelValues& label, const std::string& name, std::optional<Task> wish) {
  if (wish) return {*wish, ""};
  if (!label.whole) return {Task::regress, ""};
  const size_t count = label.values.size();
  const bool numbered = count > 0 && (label.values[0] == 0 || label.values[0] == 1) &&
                        label.values.back() - label.values[0] + 1 == static_cast<double>(count);
  const bool seen = label.rows >= kRowsForEach * count;
  if (numbered && (count <= kFewValues || (count <= kMostNumbered && seen))) return {Task::classify, ""};
  if (count <= kFewValues && seen)
    return {
        Task::classify,
        fmt::format("'{}' has {} whole numbers and is taken for classes; --loss mse predicts the number", name, count)};
  const std::string many = count > kMostClasses ? fmt::format("more than {}", kMostClasses) : std::to_string(count);
  return {Task::regress,
          fmt::format("'{}' has {} whole numbers in {} rows and is taken for a number to predict; --loss "
                      "cross-entropy takes them for classes",
                      name, many, label.rows)};
}

std::vector<bool> choose_tests(const std::vector<int32_t>& classes, size_t tests, uint64_t seed) {
  // Rows in the order of their classes, each class in an order by chance; every (rows / tests)-th of them is a test
  // row.
  const size_t rows = classes.size();
  std::vector<size_t> place(1, 0);  // of the next row of each class
  for (const int32_t label : classes) {
    if (place.size() <= static_cast<size_t>(label) + 1) place.resize(static_cast<size_t>(label) + 2);
    place[static_cast<size_t>(label) + 1]++;
  }
  for (size_t c = 1; c < place.size(); c++) place[c] += place[c - 1];
  const auto tests_before = [&](size_t at) { return (at * tests + rows / 2) / rows; };
  std::vector<bool> is_test(rows);
  for (const uint32_t row : epoch_order(rows, seed, -1, true)) {
    const size_t at = place[static_cast<size_t>(classes[row])]++;
    is_test[row] = tests_before(at + 1) > tests_before(at);
  }
  return is_test;
}

}  // namespace trireme::data
