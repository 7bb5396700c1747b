#pragma once
// The lines of a text file, shared out among ranks.
#include <cstdint>
#include <fstream>
#include <string>
#include <string_view>

namespace trireme::data {

/// One rank's share: the lines that begin in its part of the bytes. Shares of all ranks hold every line once, need no
/// word between the ranks, and differ by about a line. Reads a block at a time, so that a file may be larger than
/// memory. Lines end with \n or \r\n; the last one may end without. Not thread-safe.
class LineReader {
 public:
  static constexpr size_t kLongest = 1 << 20;  // bytes of a line; a longer one is damage

  /// Throws IoError when the file cannot be read, InvalidArgument when there is no such rank.
  LineReader(const std::string& path, int rank = 0, int ranks = 1);

  /// The next line that is not empty, without its end; false after the share's last. The view lives until the next
  /// call. Throws IoError, and Corruption for a line that is too long.
  bool next(std::string_view& line);
  /// Back to the share's first line.
  void rewind();

  /// "PATH, line N" of the line that next() gave last, counted over the whole file. For messages: it reads all that
  /// lies before.
  std::string where() const;
  const std::string& path() const { return path_; }

 private:
  bool fill();
  size_t count_lines_before(size_t offset) const;

  std::string path_;
  std::ifstream file_;
  size_t begin_ = 0, end_ = 0;  // bytes in which this share's lines begin
  std::string block_;
  size_t block_at_ = 0;  // where the block is in the file
  size_t cursor_ = 0;    // in the block: the next line
  size_t line_at_ = 0;   // in the file: the last line given
};

}  // namespace trireme::data
