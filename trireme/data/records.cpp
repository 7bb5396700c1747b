#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <cstdlib>

#include <trireme/base/error.h>
#include <trireme/data/records.h>

namespace trireme::data {
namespace {

bool equals_ignoring_case(std::string_view text, std::string_view lower) {
  return std::equal(text.begin(), text.end(), lower.begin(), lower.end(),
                    [](char a, char b) { return (a >= 'A' && a <= 'Z' ? a - 'A' + 'a' : a) == b; });
}

bool is_missing(std::string_view cell) {
  constexpr size_t kLongestMark = 4;
  if (cell.empty()) return true;
  if (cell.size() > kLongestMark) return false;
  for (const char* mark : {"?", "na", "n/a", "nan", "null"})
    if (equals_ignoring_case(cell, mark)) return true;
  return false;
}

/// Read as double, so that what is too small for a float becomes 0 and no error.
bool read_number(std::string_view cell, double& value) {
  if (cell.size() > 1 && cell[0] == '+' && cell[1] != '-') cell.remove_prefix(1);
  const char* end = cell.data() + cell.size();
  const auto [stop, error] = std::from_chars(cell.data(), end, value);
  if (stop != end) return false;
  if (error == std::errc::result_out_of_range)
    value = std::strtod(std::string(cell).c_str(), nullptr);  // 0 or infinite
  return error != std::errc::invalid_argument && std::isfinite(static_cast<float>(value));
}

/// Length of the UTF-8 sequence at the beginning of `text`; 0: it is none.
size_t sequence_length(std::string_view text) {
  const auto lead = static_cast<unsigned char>(text[0]);
  if (lead < 0x80) return 1;
  const size_t length = lead >= 0xf0 ? 4 : lead >= 0xe0 ? 3 : 2;
  if (lead < 0xc2 || lead > 0xf4 || text.size() < length) return 0;
  for (size_t i = 1; i < length; i++)
    if ((static_cast<unsigned char>(text[i]) & 0xc0) != 0x80) return 0;
  const auto second = static_cast<unsigned char>(text[1]);
  const bool overlong = (lead == 0xe0 && second < 0xa0) || (lead == 0xf0 && second < 0x90);
  const bool beyond = (lead == 0xed && second > 0x9f) || (lead == 0xf4 && second > 0x8f);  // surrogates; past U+10FFFF
  return overlong || beyond ? 0 : length;
}

}  // namespace

CellKind read_cell(std::string_view cell, double& value) {
  const bool letter = cell.empty() || cell[0] > '9' || cell[0] < '+';  // no number begins so, but inf and nan would
  if (!letter && read_number(cell, value)) return CellKind::number;
  return is_missing(cell) ? CellKind::missing : CellKind::text;
}

CellKind read_cell(const Cell& cell, double& value) {
  if (!cell.plain) return read_cell(cell.text, value);
  return value = cell.value, CellKind::number;
}

bool has_decimal_comma(std::string_view cell) {
  const size_t comma = cell.find(',');
  if (comma == std::string_view::npos || cell.find_first_of("0123456789") == std::string_view::npos) return false;
  std::string point(cell);
  point[comma] = '.';
  double ignored = 0;
  return read_number(point, ignored);
}

bool is_utf8(std::string_view text) {
  for (size_t i = 0; i < text.size();) {
    const size_t length = sequence_length(text.substr(i));
    if (length == 0) return false;
    i += length;
  }
  return true;
}

std::string as_utf8(std::string_view text) {
  if (is_utf8(text)) return std::string(text);
  std::string utf8;
  for (const char c : text) {
    const auto code = static_cast<unsigned char>(c);
    if (code < 0x80)
      utf8 += c;
    else
      utf8 += {static_cast<char>(0xc0 | code >> 6), static_cast<char>(0x80 | (code & 0x3f))};
  }
  return utf8;
}

std::string shown_cell(std::string_view cell) {
  constexpr size_t kLongest = 40;
  size_t cut = std::min(kLongest, cell.size());
  while (cut > 0 && cut < cell.size() && (static_cast<unsigned char>(cell[cut]) & 0xc0) == 0x80)
    cut--;  // between letters
  std::string shown = as_utf8(cell.substr(0, cut)) + (cut < cell.size() ? "…" : "");
  std::replace_if(
      shown.begin(), shown.end(), [](char c) { return c >= 0 && c < ' '; }, ' ');
  return shown;
}

RecordReader::RecordReader(std::string_view text, char delimiter, const std::string& path, size_t first_line)
    : at_(text.data()), end_(text.data() + text.size()), delimiter_(delimiter), path_(path), line_(first_line) {
  for (const char c : {delimiter, '\n', '"'}) stops_[static_cast<unsigned char>(c)] = true;
  if (delimiter == ' ') stops_['\t'] = stops_['\r'] = true;
}

std::string RecordReader::where() const { return fmt::format("{}, line {}", path_, record_line_); }

void RecordReader::bad_quote(const char* what) const {
  fail<Corruption>("{}: {}. A cell with quotes or delimiters in it stands in quotes, and quotes inside it are doubled",
                   where(), what);
}

void RecordReader::skip_spaces() {
  while (at_ < end_ && space(*at_)) at_++;
}

/// Past blank lines and comments; false at the end.
bool RecordReader::skip_to_record() {
  while (at_ < end_) {
    const char* begin = at_;
    while (at_ < end_ && (space(*at_) || *at_ == '\t')) at_++;
    if (at_ == end_) return false;
    if (*at_ == '\n') {
      at_++, line_++;
    } else if (*begin == '#') {
      at_ = begin;
      skip_comment();
    } else {
      at_ = begin;  // a first cell may be empty
      return true;
    }
  }
  return false;
}

void RecordReader::skip_comment() {
  const char* stop = std::find(at_, end_, '\n');
  record_line_ = line_;
  if (std::count(at_, stop, '"') % 2 != 0) bad_quote("a comment with an odd number of quotes");
  comments_++, line_++;
  at_ = stop == end_ ? end_ : stop + 1;
}

bool RecordReader::next(std::vector<Cell>& cells) {
  cells.clear();
  unquoted_.clear();
  if (!skip_to_record()) return false;
  record_line_ = line_;
  while (true) {
    skip_spaces();
    if (delimiter_ == ' ' && !cells.empty() && (at_ == end_ || *at_ == '\n')) break;  // spaces at the end of the line
    if (at_ < end_ && *at_ == '"')
      cells.push_back({quoted_cell()});
    else
      plain_cell(cells.emplace_back());
    if (at_ == end_ || *at_ == '\n') break;
    if (delimiter_ != ' ') at_++;
  }
  if (at_ < end_) at_++, line_++;
  return true;
}

/// Most cells are digits with or without a point, and these are read on the way: both the digits and the power of ten
/// are exact as doubles, so that the quotient is what from_chars would say.
void RecordReader::plain_cell(Cell& cell) {
  constexpr ptrdiff_t kExactDigits = 15;
  constexpr std::array kPowers = {1e0, 1e1, 1e2, 1e3, 1e4, 1e5, 1e6, 1e7, 1e8, 1e9, 1e10, 1e11, 1e12, 1e13, 1e14, 1e15};
  const char* begin = at_;
  const bool negative = at_ < end_ && *at_ == '-';
  if (negative || (at_ < end_ && *at_ == '+')) at_++;
  uint64_t digits = 0;
  const char* first = at_;
  const auto read_digits = [&] {
    for (; at_ < end_ && *at_ >= '0' && *at_ <= '9'; at_++) digits = 10 * digits + static_cast<uint64_t>(*at_ - '0');
  };
  read_digits();
  ptrdiff_t count = at_ - first, behind_point = 0;
  if (at_ < end_ && *at_ == '.') {
    const char* point = at_++;
    read_digits();
    behind_point = at_ - point - 1;
    count += behind_point;
  }
  if (count > 0 && count <= kExactDigits && (at_ == end_ || stops_[static_cast<unsigned char>(*at_)])) {
    const double value = static_cast<double>(digits) / kPowers[static_cast<size_t>(behind_point)];
    cell.value = negative ? -value : value;
    cell.plain = true;
  }
  while (at_ < end_ && !stops_[static_cast<unsigned char>(*at_)]) at_++;
  if (at_ < end_ && *at_ == '"') bad_quote("a quote in the middle of a cell");
  const char* end = at_;
  while (end > begin && space(end[-1])) end--;
  cell.text = {begin, static_cast<size_t>(end - begin)};
}

std::string_view RecordReader::quoted_cell() {
  const char* begin = ++at_;
  bool doubled = false;
  while (true) {
    at_ = std::find(at_, end_, '"');
    if (at_ == end_) bad_quote("a quote that is never closed");
    if (at_ + 1 == end_ || at_[1] != '"') break;
    doubled = true;
    at_ += 2;
  }
  std::string_view text(begin, static_cast<size_t>(at_ - begin));
  line_ += static_cast<size_t>(std::count(text.begin(), text.end(), '\n'));
  const bool space_follows = ++at_ < end_ && space(*at_);
  skip_spaces();
  const bool at_edge = at_ == end_ || *at_ == '\n' || *at_ == delimiter_ || (delimiter_ == ' ' && space_follows);
  if (!at_edge) bad_quote("text behind a closing quote");
  if (doubled) {
    std::string& single = unquoted_.emplace_back();
    for (size_t i = 0; i < text.size(); i++)
      if (single += text[i]; text[i] == '"') i++;
    text = single;
  }
  constexpr std::string_view kBlanks = " \t\r\n";
  text.remove_prefix(std::min(text.find_first_not_of(kBlanks), text.size()));
  return text.substr(0, text.find_last_not_of(kBlanks) + 1);
}

}  // namespace trireme::data
