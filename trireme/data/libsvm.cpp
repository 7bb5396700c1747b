// LIBSVM's text format: `label index:value index:value …`, one row a line.
#include <charconv>
#include <cmath>

#include <trireme/base/error.h>
#include <trireme/data/criteo.h>

namespace trireme::data {
namespace {

/// Takes the next word off the line; empty when there is none.
std::string_view next_word(std::string_view& line) {
  const size_t begin = std::min(line.find_first_not_of(" \t"), line.size());
  const size_t end = std::min(line.find_first_of(" \t", begin), line.size());
  const std::string_view word = line.substr(begin, end - begin);
  line.remove_prefix(end);
  return word;
}

/// The whole text as a finite float, with or without a plus. What is too small for a float becomes 0.
bool parse_value(std::string_view text, float& value) {
  if (text.starts_with('+') && !text.starts_with("+-")) text.remove_prefix(1);
  double wide = 0;
  const auto [stop, error] = std::from_chars(text.data(), text.data() + text.size(), wide);
  value = static_cast<float>(wide);
  return error == std::errc{} && stop == text.data() + text.size() && std::isfinite(value);
}

bool parse_entry(std::string_view word, uint64_t& key, float& value) {
  const size_t colon = word.find(':');
  if (colon == std::string_view::npos) return false;
  const auto [stop, error] = std::from_chars(word.data(), word.data() + colon, key);
  return error == std::errc{} && stop == word.data() + colon && parse_value(word.substr(colon + 1), value);
}

}  // namespace

SparseRows read_libsvm(const std::string& path, int rank, int ranks) {
  LineReader lines(path, rank, ranks);
  SparseRows rows;
  for (std::string_view line; lines.next(line);) {
    line = line.substr(0, line.find('#'));
    std::string_view word = next_word(line);
    if (word.empty()) continue;
    float label = 0;
    if (!parse_value(word, label))
      fail<Corruption>("{}, column 1: the label '{}' is not a number", lines.where(), word.substr(0, 40));
    for (size_t column = 2; !(word = next_word(line)).empty(); column++) {
      uint64_t key = 0;
      float value = 0;
      if (!parse_entry(word, key, value))
        fail<Corruption>("{}, column {}: '{}' is not INDEX:VALUE with a whole number of at least 0 and a number",
                         lines.where(), column, word.substr(0, 40));
      rows.keys.push_back(key);
      rows.values.push_back(value);
    }
    rows.labels.push_back(label);
    rows.begins.push_back(rows.keys.size());
  }
  return rows;
}

}  // namespace trireme::data
