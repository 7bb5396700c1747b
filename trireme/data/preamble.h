#pragma once
// What the beginning of a CSV file tells: how cells are apart, what the columns are called, where the rows begin.
#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <trireme/data/text.h>

namespace trireme::data {

struct Preamble {
  char delimiter = ',';
  bool header = false;
  std::vector<std::string> names;    // of the columns; their numbers, from 0, where there is no header
  size_t begin = 0;                  // byte at which the rows begin
  size_t lines = 0;                  // before it
  std::vector<std::string> classes;  // by number, from a count line such as 150,4,setosa,versicolor,virginica
  std::optional<size_t> rows;        // that a count line promises
  std::vector<std::string> remarks;  // what was skipped or is unusual, as sentences
};

/// Reads as much of the file's beginning as it takes to see a few rows. The same in every rank. Throws Corruption for a
/// file that is empty, has less than `least` columns or is no text, and InvalidArgument for one in an encoding that has
/// to be changed first.
Preamble read_preamble(TextFile& file, size_t least = 2);

/// The same for a text; `whole`: it does not go on.
Preamble read_preamble(std::string_view text, bool whole, const std::string& path, size_t least = 2);

}  // namespace trireme::data
