#pragma once
// One rank's share of a CSV file: the records that begin in its part of the bytes.
#include <limits>
#include <string>
#include <vector>

#include <trireme/comm/shm/communicator.h>
#include <trireme/data/columns.h>
#include <trireme/data/preamble.h>

namespace trireme::data {

constexpr float kNothing = std::numeric_limits<float>::quiet_NaN();  // a missing value

/// "3 rows"
std::string plural(size_t count, const char* noun);

/// The first cell of a column that is text, as far as this rank has seen.
struct FirstText {
  size_t line = 0;  // 0: there is none
  std::string text;
};

struct CsvPart {
  std::string path;
  Preamble preamble;
  std::string text;                      // of the records
  size_t first_line = 1;                 // where it begins
  size_t comments = 0;                   // in it
  size_t rows = 0;                       // in it
  std::vector<float> values;             // rows × columns; kNothing where there is no number
  std::vector<Tally> tallies;            // of this share, by column
  std::vector<FirstText> first_texts;    // by column
  size_t rows_before = 0, all_rows = 0;  // in the shares of lower ranks; in all of them
};

/// The file's beginning. Not collective.
CsvPart open_csv(TextFile& file);

/// Reads and parses the share. Collective. Throws Corruption with file and line for records that are broken or have
/// another number of cells than the header or the first row.
void read_records(comm::shm::Communicator& group, TextFile& file, CsvPart& part);

}  // namespace trireme::data
