#pragma once
// What the columns of a CSV file mean to a model: how cells become inputs, and outputs become answers. Saved models
// carry it as JSON text, so that they can be used on rows that training never saw.
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace trireme::data {

/// What the labels are: classes, numbers, or tokens of a text.
enum class Task : uint8_t {
  classify,
  regress,
  next_token,    // of each token of a sample the one that follows
  masked_token,  // of some tokens of a sample what they were before they were masked
};
inline bool is_text(Task task) { return task == Task::next_token || task == Task::masked_token; }

/// A column other than the label.
struct Column {
  enum class Kind : uint8_t {
    number,    // one input
    category,  // one input per category: 1 for the row's, 0 for the others
    unused,    // none
  };
  std::string name;
  Kind kind = Kind::number;
  double mean = 0, deviation = 1;         // number: of the training rows; the mean also stands for a missing value
  std::vector<std::string> categories{};  // category: in the order of their inputs
  bool missing = false;                   // category: the last input says that the value is missing

  size_t inputs() const;
  bool operator==(const Column&) const = default;
};

struct Schema {
  std::vector<Column> columns;  // in the order of the file, without the label
  std::string label;            // its name
  size_t label_column = 0;      // its place in the file
  Task task = Task::classify;
  std::vector<std::string> classes;  // classify: names by number
  bool normalised = true;            // numbers are (x - mean) / deviation
  double mean = 0, deviation = 1;    // regress: the number to predict is output × deviation + mean

  /// Of a model.
  size_t inputs() const;
  /// One row as inputs; `cells` are those of `columns`, as they stand in a file. A category that training did not see
  /// is all zeros. Throws InvalidArgument when their number is wrong or a number is none.
  std::vector<float> encode(std::span<const std::string_view> cells) const;
  /// The same into memory of inputs() numbers.
  void encode(std::span<const std::string_view> cells, float* into) const;
  bool operator==(const Schema&) const = default;
};

/// What a number is to the model.
inline float scaled(const Column& column, bool normalised, float value) {
  return normalised ? static_cast<float>((double{value} - column.mean) / column.deviation) : value;
}

/// Reader and writer of the JSON text (docs/data.md). The reader throws Corruption for a text that is none.
std::string to_json(const Schema& schema);
Schema schema_from_json(const std::string& text);

/// "classification, 3 classes (setosa, versicolor, virginica), 4 features, normalised"
std::string describe(const Schema& schema);

}  // namespace trireme::data
