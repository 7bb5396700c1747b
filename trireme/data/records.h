#pragma once
// Rows of text: cells, quotes, numbers and missing values.
//
// A *record* is a line of a CSV file, or several where a quoted cell holds the ends of lines. A quote opens at the
// beginning of a cell and closes at its end; between the two, "" stands for one. As quotes come in pairs only, the
// number of them before a place tells whether it lies in a quoted cell: that is how ranks find the first record of
// their share without reading the shares before it.
#include <array>
#include <cstdint>
#include <deque>
#include <string>
#include <string_view>
#include <vector>

namespace trireme::data {

/// What stands in a cell.
enum class CellKind : uint8_t { number, missing, text };

/// A cell without quotes and the spaces around it.
struct Cell {
  std::string_view text;
  double value = 0;    // if `plain`
  bool plain = false;  // the text is digits and perhaps a point, and was read already
};

/// Missing: nothing, ?, NA, N/A, NaN, null, in capitals or not. A number is finite as a float; +1.5 and 1e-3 are some.
CellKind read_cell(std::string_view cell, double& value);
CellKind read_cell(const Cell& cell, double& value);

/// "1,5": digits with one comma among them.
bool has_decimal_comma(std::string_view cell);

/// `text` if it is UTF-8, otherwise what it says in ISO 8859-1, as UTF-8.
std::string as_utf8(std::string_view text);
bool is_utf8(std::string_view text);

/// A cell as messages show it: not longer than a line can bear.
std::string shown_cell(std::string_view cell);

/// Goes through the records of a text that begins with one; blank lines and lines that begin with # are left out. With
/// the delimiter ' ', cells are apart by any number of spaces and tabs. Not thread-safe.
class RecordReader {
 public:
  /// `path` and `first_line` (from 1) are for messages; both texts must outlive the reader.
  RecordReader(std::string_view text, char delimiter, const std::string& path, size_t first_line);

  /// The cells of the next record; false at the end. They live until the next call, and no longer than the reader.
  /// Throws Corruption with file and line for a quote that is neither at the edge of a cell nor doubled.
  bool next(std::vector<Cell>& cells);

  size_t line() const { return record_line_; }  // of the record that next() gave last: where it begins
  size_t comments() const { return comments_; }
  std::string where() const;  // "PATH, line N"

 private:
  bool skip_to_record();
  void skip_comment();
  void plain_cell(Cell& cell);
  std::string_view quoted_cell();
  bool space(char c) const { return c == ' ' || c == '\r' || (c == '\t' && delimiter_ != '\t'); }
  void skip_spaces();
  [[noreturn]] void bad_quote(const char* what) const;

  const char* at_;
  const char* end_;
  char delimiter_;
  std::array<bool, 256> stops_{};  // characters that end a cell without quotes, or do not belong in it
  const std::string& path_;
  size_t line_, record_line_ = 0, comments_ = 0;
  std::deque<std::string> unquoted_;  // cells that had doubled quotes
};

}  // namespace trireme::data
