#pragma once
// Decisions about the columns of a CSV file: pure functions of what was counted, each with its reason.
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include <trireme/data/schema.h>

namespace trireme::data {

/// What the cells of one column are, over all rows.
struct Tally {
  int64_t numbers = 0, missing = 0;
  int64_t texts = 0;   // neither
  int64_t commas = 0;  // of the texts: numbers but for a comma instead of a point

  Tally& operator+=(const Tally& other);
};

/// A column of numbers in which less than this part of the cells is text has errors; with more of it, it has
/// categories.
constexpr double kFewTexts = 0.1;

enum class ColumnKind : uint8_t { empty, numbers, numbers_with_errors, decimal_commas, texts };
ColumnKind kind_of(const Tally& tally);

/// Whether that many different texts are ids or prose, and not categories or classes.
constexpr size_t kMostCategories = 100, kMostClasses = 1000;
bool too_many(size_t different, size_t most, size_t rows);

/// Whether a first column that counts the rows is a mere number of the row, by its name.
bool names_row_numbers(const std::string& name, bool header);

/// What is known of a column of numbers that is to be predicted.
struct LabelValues {
  size_t rows = 0;             // that have one
  bool whole = true;           // whole numbers only
  std::vector<double> values;  // the different ones in order, as long as they are whole and at most kMostClasses
};

struct TaskChoice {
  Task task = Task::classify;
  std::string reason;  // a sentence for the log; "" where there was no doubt
};

/// Classes or numbers? Whole numbers are classes when there are few: numbered from 0 or 1 without a gap up to 20, or
/// 100 with ten rows for each; otherwise up to 20 with ten rows for each. `wish` has the last word.
TaskChoice choose_task(const LabelValues& label, const std::string& name, std::optional<Task> wish);

/// Which of the rows are test rows: `tests` of them, by `seed` alone, spread evenly over the classes. `classes` has one
/// number per row.
std::vector<bool> choose_tests(const std::vector<int32_t>& classes, size_t tests, uint64_t seed);

}  // namespace trireme::data
