#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstring>

#include <trireme/base/error.h>
#include <trireme/data/criteo.h>
#include <trireme/data/random.h>

namespace trireme::data {
namespace {

constexpr size_t kColumns = 1 + Clicks::kNumbers + Clicks::kCategories;
constexpr size_t kMostDigits = 16;  // of a category; Criteo's have 8

/// A cell as a message shows it.
std::string shown(std::string_view cell) {
  return cell.size() <= 40 ? std::string(cell) : fmt::format("{}…", cell.substr(0, 40));
}

std::array<std::string_view, kColumns> columns_of(std::string_view line, const LineReader& lines) {
  const size_t found = static_cast<size_t>(std::count(line.begin(), line.end(), '\t')) + 1;
  if (found != kColumns)
    fail<Corruption>("{}: {} columns; a line has {}, separated by tabs: the label, {} numbers, {} categories{}",
                     lines.where(), found, kColumns, Clicks::kNumbers, Clicks::kCategories,
                     found == kColumns - 1 ? ". Is this a file without labels?" : "");
  std::array<std::string_view, kColumns> columns;
  for (std::string_view& column : columns) {
    const size_t tab = std::min(line.find('\t'), line.size());
    column = line.substr(0, tab);
    line.remove_prefix(std::min(tab + 1, line.size()));
  }
  return columns;
}

bool is_category(std::string_view text) {
  const auto hex = [](char c) { return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f') || (c >= 'A' && c <= 'F'); };
  return text.size() <= kMostDigits && std::all_of(text.begin(), text.end(), hex);
}

}  // namespace

uint64_t category_key(size_t field, std::string_view text) {
  uint64_t key = mix(field, text.size());
  for (size_t at = 0; at < text.size(); at += 8) {
    uint64_t piece = 0;
    for (size_t i = 0; i < 8 && at + i < text.size(); i++)
      piece |= uint64_t{static_cast<unsigned char>(text[at + i])} << (8 * i);
    key = mix(key, piece);
  }
  return key;
}

void Clicks::clear() {
  labels.clear();
  numbers.clear();
  keys.clear();
}

void CriteoReader::parse(std::string_view line, Clicks& clicks) const {
  const auto columns = columns_of(line, lines_);
  if (columns[0] != "0" && columns[0] != "1")
    fail<Corruption>("{}, column 1: the label is 0 or 1, not '{}'", lines_.where(), shown(columns[0]));
  clicks.labels.push_back(columns[0] == "1" ? 1.0f : 0.0f);
  for (size_t i = 0; i < Clicks::kNumbers; i++) {
    const std::string_view text = columns[1 + i];
    int64_t number = 0;
    const auto [stop, error] = std::from_chars(text.data(), text.data() + text.size(), number);
    if (!text.empty() && (error != std::errc{} || stop != text.data() + text.size()))
      fail<Corruption>("{}, column {}: '{}' is not a whole number", lines_.where(), i + 2, shown(text));
    clicks.numbers.push_back(static_cast<float>(std::log1p(static_cast<double>(std::max<int64_t>(0, number)))));
  }
  for (size_t i = 0; i < Clicks::kCategories; i++) {
    const std::string_view text = columns[1 + Clicks::kNumbers + i];
    if (!is_category(text))
      fail<Corruption>("{}, column {}: '{}' is not a category of up to {} hexadecimal digits", lines_.where(),
                       i + 2 + Clicks::kNumbers, shown(text), kMostDigits);
    clicks.keys.push_back(category_key(i, text));
  }
}

void CriteoReader::read(size_t rows, Clicks& clicks) {
  clicks.clear();
  for (std::string_view line; clicks.size() < rows && lines_.next(line);) parse(line, clicks);
}

Clicks read_criteo(const std::string& path, int rank, int ranks) {
  Clicks clicks;
  CriteoReader(path, rank, ranks).read(std::string::npos, clicks);
  return clicks;
}

}  // namespace trireme::data
