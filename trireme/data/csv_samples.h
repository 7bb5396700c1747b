#pragma once
// The rows of CSV files as samples in memory that the ranks of a machine share.
#include <vector>

#include <trireme/data/csv_part.h>
#include <trireme/data/dataset.h>

namespace trireme::data {

/// Encodes what ranks have read. The samples are the same whatever the number of ranks: rows keep their order, and sums
/// go over all rows of a column at once. One use: run(), once. Not thread-safe.
class CsvSamples {
 public:
  /// `parts`: a training file, and a test file if there is one. Columns of text have the numbers of their categories as
  /// values; `class_values` are the numbers that mean classes, by class, or empty where the values are the classes
  /// already. All is kept by reference; `schema` gets means and deviations.
  CsvSamples(comm::shm::Communicator& group, const OpenOptions& options, const std::vector<CsvPart>& parts,
             const std::vector<double>& class_values, Schema& schema)
      : group_(group),
        options_(options),
        parts_(parts),
        class_values_(class_values),
        schema_(schema),
        columns_(parts[0].preamble.names.size()),
        label_(schema.label_column),
        width_(schema.inputs()) {}

  /// Collective; blocks.
  Splits run();
  /// Rows that were left out.
  size_t unlabelled() const { return unlabelled_; }

 private:
  struct Numbers {  // columns of numbers, and where their inputs are
    std::vector<Column*> columns;
    std::vector<size_t> inputs;
  };

  template <class Visit>
  void for_each_row(const Visit& visit) const;
  int32_t class_of(float label) const;
  std::vector<size_t> places();
  std::vector<size_t> split_places(const std::vector<int32_t>& classes, size_t before);
  void fill(const std::vector<size_t>& places);
  void write_row(const float* row, size_t place);
  Numbers numbers();
  void measure();
  void measure_targets();
  void scale();
  Dataset view(const std::string& name, size_t begin, size_t count) const;

  comm::shm::Communicator& group_;
  const OpenOptions& options_;
  const std::vector<CsvPart>& parts_;
  const std::vector<double>& class_values_;
  Schema& schema_;
  size_t columns_, label_;  // in the files
  size_t width_;            // inputs of a sample
  size_t rows_ = 0, trains_ = 0, unlabelled_ = 0;
  float* inputs_ = nullptr;  // training samples, then test samples
  float* targets_ = nullptr;
  int64_t* labels_ = nullptr;
};

}  // namespace trireme::data
