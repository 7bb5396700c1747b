#pragma once
// The rows of a CSV file as a trained model needs them: encoded by the schema that was saved with it, and not by what
// stands in the file. A label is welcome but not needed.
//
// Columns are found by their names, in any order, where file and schema have names; otherwise by their places. Blocks
// on the file alone; one thread.
#include <cstdint>
#include <string>
#include <vector>

#include <trireme/data/dataset.h>
#include <trireme/data/schema.h>

namespace trireme::data {

/// What tells which rows of a file training kept for testing.
struct Split {
  std::string file;  // its name, without folders
  size_t rows = 0;   // with a label
  size_t tests = 0;  // of them
  uint64_t seed = 1;
  bool operator==(const Split&) const = default;
};

struct Rows {
  std::string path;
  size_t count = 0;
  std::vector<float> inputs;       // count × schema.inputs()
  bool labelled = false;           // the file has the label's column
  std::vector<int64_t> labels;     // classify: numbers of classes; -1 where the label is missing
  std::vector<float> targets;      // regress: as training saw them; NaN where the label is missing
  std::vector<std::string> notes;  // what was left out or is unusual, as sentences

  /// Positions of the rows with a label.
  std::vector<uint32_t> with_label() const;
  /// Whether the file has the name and the number of labelled rows of the one that was split.
  bool is_of(const Split& split) const;
  /// Of the rows with a label those that were for testing, or the others. Throws InvalidArgument when the split is of
  /// another number of rows.
  std::vector<uint32_t> part(const Split& split, bool test) const;
  /// A view: it lives as long as this.
  Dataset view(const Schema& schema) const;
};

/// Throws what reading a CSV file throws, and InvalidArgument with file and line for columns that are missing, cells
/// that are no numbers, and labels that the model does not know.
Rows read_rows(const std::string& path, const Schema& schema);

}  // namespace trireme::data
