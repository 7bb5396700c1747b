#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <charconv>

#include <trireme/base/error.h>
#include <trireme/data/preamble.h>
#include <trireme/data/records.h>

namespace trireme::data {
namespace {

constexpr size_t kFirstLook = 1 << 20;    // bytes
constexpr size_t kLongestLook = 1 << 28;  // for lines that are very long
constexpr size_t kRowsToSee = 100;

/// A record or comment as it stands in the file, without its end.
struct RawRecord {
  std::string_view text;
  size_t begin, line;  // byte and line (from 0)
  bool comment;
};

bool blank_text(std::string_view text) { return text.find_first_not_of(" \t\r") == std::string_view::npos; }

/// The first records and the comments between them. Of a text that goes on, the last one may be cut off and is left
/// out.
std::vector<RawRecord> first_records(std::string_view text, size_t begin, bool whole) {
  std::vector<RawRecord> records;
  size_t line = 0;
  for (size_t at = begin, seen = 0; at < text.size() && seen <= kRowsToSee;) {
    const bool comment = text[at] == '#';
    size_t stop = at, lines = 1;
    for (bool quoted = false; stop < text.size() && (quoted || text[stop] != '\n'); stop++) {
      quoted = quoted != (text[stop] == '"' && !comment);
      lines += text[stop] == '\n' ? 1 : 0;
    }
    const std::string_view record = text.substr(at, stop - at);
    if (stop == text.size() && !whole) break;
    if (!blank_text(record)) records.push_back({record, at, line, comment});
    seen += comment ? 0 : 1;
    line += lines;
    at = stop + 1;
  }
  return records;
}

/// Cells of a record, whether its quotes are right or not.
size_t count_cells(std::string_view record, char delimiter) {
  size_t cells = 1;
  bool quoted = false, gap = true;  // gap: spaces before the next cell
  for (const char c : record) {
    quoted = quoted != (c == '"');
    const bool apart = !quoted && (delimiter == ' ' ? c == ' ' || c == '\t' || c == '\r' : c == delimiter);
    if (delimiter != ' ') {
      cells += apart ? 1 : 0;
    } else {
      cells += gap && !apart ? 1 : 0;
      gap = apart;
    }
  }
  return delimiter == ' ' ? cells - 1 : cells;
}

/// How well a delimiter explains the records: 3 all have as many cells; 2 all but the first (a count line, or a header
/// of its own width); below 1 the part that agrees with the second; 0 none has two cells.
double fit(const std::vector<std::string_view>& records, char delimiter) {
  std::vector<size_t> counts;
  for (const std::string_view record : records) counts.push_back(count_cells(record, delimiter));
  const size_t usual = counts[counts.size() / 2];
  if (usual < 2) return 0;
  const auto same = static_cast<size_t>(std::count(counts.begin() + 1, counts.end(), usual));
  if (same + 1 < counts.size()) return static_cast<double>(same) / static_cast<double>(counts.size());
  return counts[0] == usual ? 3 : 2;
}

char find_delimiter(const std::vector<std::string_view>& records) {
  char best = ',';
  double best_fit = 0;
  for (const char candidate : {'\t', ';', '|', ',', ' '})
    if (const double now = fit(records, candidate); now > best_fit) best = candidate, best_fit = now;
  return best;
}

std::vector<std::string> split(std::string_view record, char delimiter, const std::string& path, size_t line) {
  std::vector<Cell> cells;
  std::vector<std::string> texts;
  RecordReader reader(record, delimiter, path, line + 1);  // cells with doubled quotes live in it
  reader.next(cells);
  for (const Cell& cell : cells) texts.emplace_back(cell.text);
  return texts;
}

std::optional<size_t> whole_number_in(const std::string& cell) {
  size_t value = 0;
  const char* end = cell.data() + cell.size();
  const auto [stop, error] = std::from_chars(cell.data(), end, value);
  return error == std::errc{} && stop == end && !cell.empty() ? std::optional(value) : std::nullopt;
}

CellKind kind_of_cell(const std::string& cell) {
  double ignored = 0;
  return read_cell(cell, ignored);
}

using Row = std::vector<std::string>;

/// Rows and features, then the classes' names or nothing: 150,4,setosa,versicolor,virginica or 506,13,,,.
bool is_count_line(const Row& first, const std::vector<Row>& rest, bool whole) {
  if (first.size() < 2 || rest.empty()) return false;
  const auto rows = whole_number_in(first[0]), features = whole_number_in(first[1]);
  if (!rows || !features || *rows == 0 || *features + 1 != rest[0].size()) return false;
  const auto is = [&](CellKind kind) {
    return std::all_of(first.begin() + 2, first.end(), [&](const auto& cell) { return kind_of_cell(cell) == kind; });
  };
  if (first.size() > 2 && is(CellKind::text)) return true;
  if (!is(CellKind::missing) || rest[0].size() == 2) return false;
  // A row of two numbers and missing values would look the same: then the promised number of rows has to be right.
  return !whole || rest.size() >= kRowsToSee || rest.size() == *rows || rest.size() == *rows + 1;
}

/// A header is text where numbers follow; where all is text, its words do not come again below.
bool is_header(const Row& first, const std::vector<Row>& rest) {
  bool number = false, again = false, text = false;
  for (size_t c = 0; c < first.size(); c++) {
    const CellKind kind = kind_of_cell(first[c]);
    number = number || kind == CellKind::number;
    text = text || kind == CellKind::text;
    size_t numbers = 0, texts = 0;
    for (const Row& row : rest) {
      if (c >= row.size()) continue;
      const CellKind below = kind_of_cell(row[c]);
      numbers += below == CellKind::number ? 1 : 0;
      texts += below == CellKind::text ? 1 : 0;
      again = again || (kind == CellKind::text && row[c] == first[c]);
    }
    if (kind == CellKind::text && numbers > 0 && texts == 0) return true;
  }
  return text && !number && !again;
}

void refuse_what_is_no_text(std::string_view text, const std::string& path) {
  const auto begins = [&](std::string_view mark) { return text.starts_with(mark); };
  if (begins("\xff\xfe") || begins("\xfe\xff"))
    fail<InvalidArgument>("{} is in UTF-16. Save it as UTF-8, or: iconv -f UTF-16 -t UTF-8 {} > new.csv", path, path);
  if (begins("PK\x03\x04"))
    fail<InvalidArgument>("{} is a zip file, perhaps of a spreadsheet. Save it as CSV, or unpack it", path);
  if (text.find('\0') != std::string_view::npos) fail<Corruption>("{} is no text file: it holds bytes of 0", path);
  if (text.find('\n') == std::string_view::npos && text.find('\r') != std::string_view::npos && !text.ends_with('\r'))
    fail<InvalidArgument>(
        "{}: its lines end with \\r alone, as on very old systems. Convert it: tr '\\r' '\\n' < {} > new.csv", path,
        path);
}

/// The header's names, one per column, although headers have one more or one less at times.
void fit_names(Preamble& found, Row names, const std::vector<Row>& rows, const std::string& path) {
  size_t columns = rows.empty() ? names.size() : rows[0].size();
  for (const Row& row : rows)
    if (row.size() == names.size()) columns = names.size();  // then another one is wrong, and will be named
  const bool ends_empty = std::all_of(rows.begin(), rows.end(), [](const Row& row) { return row.back().empty(); });
  if (names.size() == columns + 1 && names.back().empty()) {
    names.pop_back();
  } else if (names.size() + 1 == columns && ends_empty) {
    names.emplace_back();  // each row ends with a delimiter
  } else if (names.size() + 1 == columns) {
    names.insert(names.begin(), "");
    found.remarks.push_back(
        fmt::format("the header has a name less than the rows have cells: the first column has none"));
  } else if (names.size() != columns) {
    fail<Corruption>("{}, line {}: the header has {} names, but the first row has {} cells", path, found.lines,
                     names.size(), columns);
  }
  found.names.clear();
  for (const std::string& name : names) found.names.push_back(as_utf8(name));
}

std::string delimiter_name(char delimiter) {
  return delimiter == '\t' ? "tabs" : delimiter == ' ' ? "spaces" : fmt::format("'{}'", delimiter);
}

/// Takes the lines before the first row away, one after another.
class Beginning {
 public:
  Beginning(std::vector<RawRecord> all, const std::string& path) : path_(path) {
    for (size_t i = 0; i < all.size(); i++) {
      if (!all[i].comment) records_.push_back(all[i]);
      if (all[i].comment && records_.empty()) comments_++, last_comment_ = all[i];
    }
    if (records_.empty() && comments_ > 0)
      fail<Corruption>("{} has no rows: all lines begin with #, as comments do", path);
    if (records_.empty()) fail<Corruption>("{} is empty", path);
    std::vector<std::string_view> texts;
    for (const RawRecord& record : records_) texts.push_back(record.text);
    found.delimiter = find_delimiter(texts);
    for (const RawRecord& record : records_) rows_.push_back(split(record.text, found.delimiter, path, record.line));
    found.begin = records_[0].begin;
    found.lines = records_[0].line;
    if (found.delimiter != ',')
      found.remarks.push_back(fmt::format("cells are separated by {}", delimiter_name(found.delimiter)));
    if (comments_ > 0)
      found.remarks.push_back(
          fmt::format("{} comment line{} at the beginning skipped", comments_, comments_ == 1 ? "" : "s"));
  }

  void take_count_line(bool whole) {
    if (!is_count_line(rows_[0], {rows_.begin() + 1, rows_.end()}, whole)) return;
    const std::string text = first_text();
    const Row counts = take();
    found.rows = whole_number_in(counts[0]);
    for (size_t i = 2; i < counts.size() && !counts[i].empty(); i++) found.classes.push_back(as_utf8(counts[i]));
    found.remarks.push_back(
        fmt::format("line {} ('{}') tells the number of rows and features: skipped", found.lines, text));
  }

  void take_names(size_t least) {
    const std::string text = first_text();
    found.header = is_header(rows_[0], {rows_.begin() + 1, rows_.end()});
    if (found.header) {
      if (!is_utf8(records_[0].text)) found.remarks.emplace_back("the header is not UTF-8; read as ISO 8859-1");
      fit_names(found, take(), rows_, path_);
    } else {
      for (size_t i = 0; i < rows_[0].size(); i++) found.names.push_back(std::to_string(i));
      if (Row names = names_in_comment(); !names.empty()) fit_names(found, std::move(names), rows_, path_);
    }
    if (found.names.size() < least)
      fail<Corruption>(
          "{}: a row needs at least one feature and a label, separated by commas, semicolons, tabs or spaces; the "
          "first line "
          "has one cell ('{}')",
          path_, text);
  }

  Preamble found;

 private:
  Row take() {
    const RawRecord record = records_.front();
    Row row = std::move(rows_.front());
    records_.erase(records_.begin());
    rows_.erase(rows_.begin());
    found.lines = record.line + 1 + static_cast<size_t>(std::count(record.text.begin(), record.text.end(), '\n'));
    found.begin = record.begin + record.text.size() + 1;
    return row;
  }

  std::string first_text() const {
    return shown_cell(records_[0].text.substr(0, records_[0].text.find_first_of("\r\n")));
  }

  /// The last comment at the beginning, where it has a name for each column: numpy writes headers so.
  Row names_in_comment() const {
    if (comments_ == 0) return {};
    std::string_view text = last_comment_.text;
    text.remove_prefix(std::min(text.find_first_not_of("# "), text.size()));
    if (text.empty() || text.find('"') != std::string_view::npos) return {};
    Row names = split(text, found.delimiter, path_, last_comment_.line);
    const auto is_name = [](const std::string& cell) { return kind_of_cell(cell) == CellKind::text; };
    return names.size() == found.names.size() && std::all_of(names.begin(), names.end(), is_name) ? names : Row{};
  }

  const std::string& path_;
  std::vector<RawRecord> records_;  // that are no comments; rows_ has their cells
  std::vector<Row> rows_;
  size_t comments_ = 0;  // before the first record
  RawRecord last_comment_{};
};

}  // namespace

Preamble read_preamble(std::string_view text, bool whole, const std::string& path, size_t least) {
  constexpr std::string_view kMark = "\xef\xbb\xbf";  // of UTF-8, which some programs write first
  refuse_what_is_no_text(text, path);
  Beginning beginning(first_records(text, text.starts_with(kMark) ? kMark.size() : 0, whole), path);
  beginning.take_count_line(whole);
  beginning.take_names(least);
  beginning.found.begin = std::min(text.size(), beginning.found.begin);  // a header may be all there is
  return std::move(beginning.found);
}

Preamble read_preamble(TextFile& file, size_t least) {
  for (size_t look = kFirstLook;; look *= 4) {
    const std::string text = file.read(0, look);
    const bool whole = text.size() < look;
    if (whole || look > kLongestLook || first_records(text, 0, false).size() > kRowsToSee / 10)
      return read_preamble(text, whole, file.path(), least);
  }
}

}  // namespace trireme::data
