#include <fmt/format.h>

#include <algorithm>

#include <trireme/base/error.h>
#include <trireme/data/csv_part.h>
#include <trireme/data/dataset.h>
#include <trireme/data/gather.h>
#include <trireme/data/records.h>

namespace trireme::data {
namespace {

constexpr size_t kReadOn = 1 << 16;  // bytes at a time, beyond a share

/// By memchr, which looks at many bytes at once: lines are long and quotes rare.
int64_t count_in(const std::string& text, size_t begin, size_t end, char c) {
  int64_t count = 0;
  for (size_t at = text.find(c, begin); at < end; at = text.find(c, at + 1)) count++;
  return count;
}

/// Where the first record begins in a text of which the first byte is the last one of the share before; its size where
/// none does. `quoted`: the byte after it lies in a quoted cell.
size_t first_record(const std::string& text, bool quoted) {
  if (!quoted && text[0] == '\n') return 1;
  for (size_t at = 1; at < text.size(); at++) {
    if (text[at] == '\n' && !quoted) return at + 1;
    quoted = quoted != (text[at] == '"');
  }
  return text.size();
}

/// Reads on from byte `at` of the file to the end of the last record in `text`, which begins with one.
void finish_last_record(TextFile& file, size_t at, std::string& text) {
  bool quoted = count_in(text, 0, text.size(), '"') % 2 != 0;
  if (!quoted && text.back() == '\n') return;
  while (true) {
    const std::string more = file.read(at, at + kReadOn);
    size_t stop = 0;
    for (; stop < more.size() && (quoted || more[stop] != '\n'); stop++) quoted = quoted != (more[stop] == '"');
    text.append(more, 0, stop + 1);
    at += more.size();
    if (stop < more.size() || more.empty()) return;
  }
}

/// The text of the records that begin in this rank's share of the bytes.
void read_text(comm::shm::Communicator& group, TextFile& file, CsvPart& part) {
  const size_t size = file.size(), begin = std::min(size, part.preamble.begin);
  const Share bytes = share_of(size - begin, group.rank(), group.size());
  const size_t from = begin + bytes.begin, to = begin + bytes.end;
  const size_t back = from > begin && from < to ? 1 : 0;  // the byte before tells whether a record begins here
  std::string text = file.read(from - back, to);
  const auto count = [&](char c) { return count_in(text, back, text.size(), c); };
  const std::vector<int64_t> all = gather_counts(group, {count('\n'), count('"')}, "lines of the CSV file");
  part.first_line = part.preamble.lines + 1;
  bool quoted = false;
  for (size_t r = 0; r < static_cast<size_t>(group.rank()); r++) {
    part.first_line += static_cast<size_t>(all[2 * r]);
    quoted = quoted != (all[2 * r + 1] % 2 != 0);
  }
  const size_t first = back == 0 ? 0 : first_record(text, quoted);
  if (first == text.size()) return;
  part.first_line += static_cast<size_t>(count_in(text, back, first, '\n'));
  text.erase(0, first);
  finish_last_record(file, to, text);
  part.text = std::move(text);
}

/// The number in a cell, or kNothing.
float read_value(CsvPart& part, size_t column, const Cell& cell, size_t line) {
  double value = 0;
  Tally& tally = part.tallies[column];
  const CellKind kind = read_cell(cell, value);
  if (kind == CellKind::number) return tally.numbers++, static_cast<float>(value);
  if (kind == CellKind::missing) return tally.missing++, kNothing;
  tally.commas += has_decimal_comma(cell.text) ? 1 : 0;
  if (tally.texts++ == 0) part.first_texts[column] = {line, std::string(cell.text)};
  return kNothing;
}

void parse_records(CsvPart& part) {
  const size_t width = part.preamble.names.size();
  RecordReader reader(part.text, part.preamble.delimiter, part.path, part.first_line);
  std::vector<Cell> cells;
  part.values.reserve(width * static_cast<size_t>(1 + count_in(part.text, 0, part.text.size(), '\n')));
  for (; reader.next(cells); part.rows++) {
    if (cells.size() != width)
      fail<Corruption>("{}: {}, but {} {}", reader.where(), plural(cells.size(), "cell"),
                       part.preamble.header ? "the header has" : "the first row has", width);
    part.values.resize(part.values.size() + width);
    float* row = part.values.data() + part.rows * width;
    for (size_t c = 0; c < width; c++) row[c] = read_value(part, c, cells[c], reader.line());
  }
  part.comments = reader.comments();
}

}  // namespace

std::string plural(size_t count, const char* noun) {
  return fmt::format("{} {}{}", count, noun, count == 1 ? "" : "s");
}

CsvPart open_csv(TextFile& file) {
  CsvPart part{.path = file.path(), .preamble = read_preamble(file)};
  part.tallies.resize(part.preamble.names.size());
  part.first_texts.resize(part.preamble.names.size());
  return part;
}

void read_records(comm::shm::Communicator& group, TextFile& file, CsvPart& part) {
  read_text(group, file, part);
  parse_records(part);
  const std::vector<int64_t> rows = gather_counts(group, {static_cast<int64_t>(part.rows)}, "rows of the CSV file");
  for (size_t r = 0; r < rows.size(); r++) {
    part.all_rows += static_cast<size_t>(rows[r]);
    if (r < static_cast<size_t>(group.rank())) part.rows_before += static_cast<size_t>(rows[r]);
  }
}

}  // namespace trireme::data
