// CSV: numbers separated by commas, one sample a line, a header line if the first line is not all numbers. Each rank parses the lines that begin in its
// share of the bytes; line numbers in messages count over the whole file.
#include <fmt/ranges.h>

#include <trireme/base/error.h>
#include <trireme/base/nearest.h>
#include <trireme/data/dataset.h>
#include <charconv>
#include <cmath>
#include <cstring>
#include <fstream>
#include <sstream>

namespace trireme::data {
namespace {

std::string_view trim(std::string_view text) {
  const size_t begin = text.find_first_not_of(" \t\r\"");
  if (begin == std::string_view::npos) return {};
  return text.substr(begin, text.find_last_not_of(" \t\r\"") - begin + 1);
}

std::vector<std::string_view> cells_of(std::string_view line) {
  std::vector<std::string_view> cells;
  for (size_t begin = 0;;) {
    const size_t comma = line.find(',', begin);
    cells.push_back(trim(line.substr(begin, comma == std::string_view::npos ? comma : comma - begin)));
    if (comma == std::string_view::npos) return cells;
    begin = comma + 1;
  }
}

/// Read as double, so that what is too small for a float becomes 0 and no error.
bool parse(std::string_view cell, float& value) {
  double wide = 0;
  const auto [stop, error] = std::from_chars(cell.data(), cell.data() + cell.size(), wide);
  value = static_cast<float>(wide);
  return error == std::errc{} && stop == cell.data() + cell.size() && std::isfinite(value);
}

struct Table {
  std::vector<std::string> names;  // of the columns; numbers where there is no header
  size_t label = 0;                // index of the label's column
  size_t data_begin = 0;           // byte after the header
  size_t lines = 0;                // before data_begin
};

/// The first line that is not blank; `table` then begins with it.
std::string first_line(std::ifstream& file, const std::string& path, Table& table) {
  constexpr std::string_view kMark = "\xef\xbb\xbf";  // of UTF-8, which some programs write first
  for (std::string line; std::getline(file, line); table.lines++) {
    if (table.lines == 0 && line.starts_with(kMark)) line.erase(0, kMark.size()), table.data_begin = kMark.size();
    if (!trim(line).empty()) return line;
    table.data_begin += line.size() + 1;
  }
  fail<Corruption>("{} is empty", path);
}

Table open_table(const std::string& path, const std::string& label_column, std::ifstream& file) {
  Table table;
  const std::string first = first_line(file, path, table);
  float ignored = 0;
  bool header = false;
  for (std::string_view cell : cells_of(first)) {
    header = header || !parse(cell, ignored);
    table.names.emplace_back(cell);
  }
  if (header) table.data_begin += first.size() + 1, table.lines++;
  if (!header)
    for (size_t i = 0; i < table.names.size(); i++) table.names[i] = std::to_string(i);
  if (table.names.size() < 2) fail<Corruption>("{}: a line needs at least one feature and a label, separated by commas; the first line has one cell", path);
  table.label = table.names.size() - 1;
  if (label_column.empty()) return table;
  for (size_t i = 0; i < table.names.size(); i++)
    if (table.names[i] == label_column) return table.label = i, table;
  for (size_t i = 0; i < table.names.size(); i++)
    if (std::to_string(i) == label_column) return table.label = i, table;
  fail<InvalidArgument>("{} has no column '{}'{}; its columns are: {}", path, label_column, did_you_mean(label_column, table.names),
                        fmt::join(table.names, ", "));
}

/// The text of the lines that begin in bytes [begin, end) of the file.
std::string lines_in(std::ifstream& file, size_t begin, size_t end, size_t data_begin) {
  std::string skipped, text;
  file.clear();
  if (begin == end) return text;
  if (begin > data_begin) {
    file.seekg(static_cast<std::streamoff>(begin - 1));
    std::getline(file, skipped);  // the rest of a line that began earlier
    begin += skipped.size();
  } else {
    file.seekg(static_cast<std::streamoff>(begin));
  }
  if (begin >= end) return text;
  text.resize(end - begin);
  file.read(text.data(), static_cast<std::streamsize>(text.size()));
  text.resize(static_cast<size_t>(file.gcount()));
  std::string rest;
  if (!text.empty() && text.back() != '\n' && std::getline(file, rest)) text += rest + '\n';
  return text;
}

bool blank(std::string_view line) { return trim(line).empty(); }

/// Calls visit(line) for every line, blank ones too.
template <class Visit>
void for_each_line(std::string_view text, const Visit& visit) {
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = std::min(text.find('\n', begin), text.size());
    visit(text.substr(begin, end - begin));
    begin = end + 1;
  }
}

}  // namespace

Dataset read_csv(comm::shm::Communicator& group, const std::string& path, const std::string& label_column) {
  std::ifstream file(path, std::ios::binary);
  if (!file) fail<IoError>("cannot open {}: {}", path, errno_text());
  const Table table = open_table(path, label_column, file);
  file.clear();
  file.seekg(0, std::ios::end);
  const size_t size = static_cast<size_t>(file.tellg());
  const Share bytes = share_of(size - std::min(size, table.data_begin), group.rank(), group.size());
  const std::string text = lines_in(file, table.data_begin + bytes.begin, table.data_begin + bytes.end, table.data_begin);

  // Who has how many lines and rows: everybody needs its first line's number and its first row's place.
  int64_t mine[2] = {0, 0};
  for_each_line(text, [&](std::string_view line) { mine[0]++, mine[1] += !blank(line); });
  std::vector<int64_t> all(2 * static_cast<size_t>(group.size()));
  group.all_gather(mine, all.data(), 2, DType::i64, "lines of the CSV file");
  size_t line_number = table.lines, row = 0, rows = 0;
  for (int r = 0; r < group.size(); r++) {
    if (r < group.rank()) line_number += static_cast<size_t>(all[2 * static_cast<size_t>(r)]), row += static_cast<size_t>(all[2 * static_cast<size_t>(r) + 1]);
    rows += static_cast<size_t>(all[2 * static_cast<size_t>(r) + 1]);
  }
  if (rows == 0) fail<Corruption>("{} has a header but no samples", path);

  const size_t columns = table.names.size();
  Dataset set{.name = path, .count = rows, .shape = {static_cast<int64_t>(columns - 1)}, .dtype = DType::f32};
  auto* inputs = reinterpret_cast<float*>(allocate_shared(group, rows * (columns - 1) * sizeof(float), "the data set's inputs"));
  auto* targets = reinterpret_cast<float*>(allocate_shared(group, rows * sizeof(float), "the data set's targets"));
  auto* labels = reinterpret_cast<int64_t*>(allocate_shared(group, rows * sizeof(int64_t), "the data set's labels"));
  float highest[2] = {0, 0};  // the largest label; whether one is no class number
  for_each_line(text, [&](std::string_view line) {
    line_number++;
    if (blank(line)) return;
    const auto cells = cells_of(line);
    if (cells.size() != columns) fail<Corruption>("{}, line {}: {} cells, but the first line has {}", path, line_number, cells.size(), columns);
    float* next = inputs + row * (columns - 1);
    for (size_t i = 0; i < columns; i++) {
      float value = 0;
      if (!parse(cells[i], value)) fail<Corruption>("{}, line {}, column {} ('{}'): '{}' is not a number", path, line_number, i + 1, table.names[i], cells[i]);
      if (i != table.label) {
        *next++ = value;
        continue;
      }
      targets[row] = value;
      labels[row] = static_cast<int64_t>(value);
      highest[0] = std::max(highest[0], value);
      if (value < 0 || value > 9999 || value != std::floor(value)) highest[1] = 1;
    }
    row++;
  });
  group.allreduce(highest, 2, DType::f32, Op::max, "labels");
  set.inputs = reinterpret_cast<const std::byte*>(inputs);
  set.targets = targets;
  set.labels = labels;
  set.task = highest[1] != 0 ? Task::regress : Task::classify;  // whole numbers from 0 to 9999 are classes
  set.classes = set.task == Task::classify ? std::max(2, static_cast<int>(highest[0]) + 1) : 0;
  return set;
}

}  // namespace trireme::data
