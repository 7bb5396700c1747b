#pragma once
// Data of recommenders: clicks with numbers and categories. Each rank reads its share of a file by itself; nothing here
// is collective.
#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include <trireme/data/lines.h>

namespace trireme::data {

/// The key of a category in field `field` (from 0): a hash of both, so that equal texts in different fields are
/// different rows of a table. The value of a key is part of saved tables and never changes.
uint64_t category_key(size_t field, std::string_view text);

/// Rows of the Criteo display-advertising sets.
struct Clicks {
  static constexpr size_t kNumbers = 13, kCategories = 26;

  std::vector<float> labels;   // 1: clicked; 0: not
  std::vector<float> numbers;  // kNumbers per row: log(1 + x); 0 where the number is missing or negative
  std::vector<uint64_t> keys;  // kCategories per row; a missing category has a key too, one per field

  size_t size() const { return labels.size(); }
  void clear();
};

/// Criteo's lines: label, 13 whole numbers, 26 categories in hexadecimal digits, separated by tabs; numbers and
/// categories may be missing, the label not. Blocks on the file alone. Not thread-safe.
class CriteoReader {
 public:
  explicit CriteoReader(const std::string& path, int rank = 0, int ranks = 1) : lines_(path, rank, ranks) {}

  /// Replaces `clicks` by the next `rows` rows of this share; fewer at its end, none after it. Throws Corruption with
  /// file, line and column, and IoError.
  void read(size_t rows, Clicks& clicks);
  void rewind() { lines_.rewind(); }

 private:
  void parse(std::string_view line, Clicks& clicks) const;
  LineReader lines_;
};

/// The whole share at once: 264 bytes per row. An empty share is none of the errors: a file of two lines has nothing
/// for a third rank.
Clicks read_criteo(const std::string& path, int rank = 0, int ranks = 1);

/// Rows with any number of entries, as LIBSVM writes them.
struct SparseRows {
  std::vector<float> labels;      // as written: 0 and 1, −1 and 1, or any number
  std::vector<size_t> begins{0};  // row i's entries are [begins[i], begins[i + 1])
  std::vector<uint64_t> keys;     // the indices, as written
  std::vector<float> values;

  size_t size() const { return labels.size(); }
};

/// Lines `label index:value index:value …`, separated by spaces or tabs; what follows a # is left out. Throws as
/// CriteoReader does; the label is column 1.
SparseRows read_libsvm(const std::string& path, int rank = 0, int ranks = 1);

/// What make_criteo_like planted.
struct Planted {
  double auc = 0;     // of the model that drew the labels, on these rows: no other does better but by luck
  double clicks = 0;  // the part of rows with label 1
};

/// Writes `rows` lines in Criteo's format. Labels are drawn from a logistic model over the categories and numbers, the
/// same for every seed, so that a test file of another seed fits its training file. Categories are skewed: 4 to 400 in
/// a field, most rows have the first few. Throws IoError.
Planted make_criteo_like(const std::string& path, size_t rows, uint64_t seed);

}  // namespace trireme::data
