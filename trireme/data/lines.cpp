#include <algorithm>
#include <filesystem>

#include <trireme/base/error.h>
#include <trireme/data/lines.h>

namespace trireme::data {
namespace {

constexpr size_t kBlock = 1 << 20;

}  // namespace

LineReader::LineReader(const std::string& path, int rank, int ranks) : path_(path), file_(path, std::ios::binary) {
  if (ranks < 1 || rank < 0 || rank >= ranks)
    fail<InvalidArgument>("{}: there is no share {} of {}", path, rank, ranks);
  if (std::filesystem::is_directory(path))
    fail<IoError>("{} is a folder; expected a file", path);  // opens, but cannot be read
  if (!file_) fail<IoError>("cannot open {}: {}", path, errno_text());
  file_.seekg(0, std::ios::end);
  const std::streamoff size = file_.tellg();
  if (size < 0) fail<IoError>("cannot read {}: {}", path, errno_text());
  const auto cut = [&](int i) {
    return static_cast<size_t>(static_cast<unsigned __int128>(size) * static_cast<unsigned>(i) /
                               static_cast<unsigned>(ranks));
  };
  begin_ = cut(rank);
  end_ = cut(rank + 1);
  rewind();
}

void LineReader::rewind() {
  file_.clear();
  block_.clear();
  cursor_ = 0;
  // The byte before the share tells whether a line begins with the share; if not, the rest of that line is the rank's
  // before.
  block_at_ = begin_ == 0 ? 0 : begin_ - 1;
  file_.seekg(static_cast<std::streamoff>(block_at_));
  if (begin_ == 0) return;
  for (;;) {
    const size_t stop = block_.find('\n', cursor_);
    if (stop != std::string::npos) return void(cursor_ = stop + 1);
    cursor_ = block_.size();
    if (block_at_ + cursor_ >= end_ || !fill()) return void(cursor_ = block_.size());
  }
}

/// More bytes behind those from the cursor on; false at the end of the file.
bool LineReader::fill() {
  block_.erase(0, cursor_);
  block_at_ += cursor_;
  cursor_ = 0;
  const size_t kept = block_.size();
  block_.resize(kept + kBlock);
  file_.read(block_.data() + kept, static_cast<std::streamsize>(kBlock));
  const std::streamsize got = file_.gcount();
  if (file_.bad()) fail<IoError>("cannot read {} at byte {}: {}", path_, block_at_ + kept, errno_text());
  block_.resize(kept + static_cast<size_t>(got));
  return got > 0;
}

bool LineReader::next(std::string_view& line) {
  while (block_at_ + cursor_ < end_) {
    size_t stop = block_.find('\n', cursor_);
    while (stop == std::string::npos) {
      const size_t searched = block_.size() - cursor_;
      if (searched > kLongest || !fill()) break;
      stop = block_.find('\n', searched);
    }
    if (stop == std::string::npos) stop = block_.size();  // a last line without an end
    line_at_ = block_at_ + cursor_;
    if (stop - cursor_ > kLongest)
      fail<Corruption>("{}: longer than {} bytes; is this a text file?", where(), kLongest);
    line = std::string_view(block_).substr(cursor_, stop - cursor_);
    cursor_ = std::min(stop + 1, block_.size());
    if (!line.empty() && line.back() == '\r') line.remove_suffix(1);
    if (!line.empty()) return true;
    if (cursor_ == block_.size() && file_.eof()) return false;
  }
  return false;
}

size_t LineReader::count_lines_before(size_t offset) const {
  std::ifstream file(path_, std::ios::binary);
  std::string block(kBlock, '\0');
  size_t lines = 0;
  while (offset > 0 && file.read(block.data(), static_cast<std::streamsize>(std::min(kBlock, offset))).gcount() > 0) {
    const auto got = file.gcount();
    lines += static_cast<size_t>(std::count(block.begin(), block.begin() + got, '\n'));
    offset -= static_cast<size_t>(got);
  }
  return lines;
}

std::string LineReader::where() const { return fmt::format("{}, line {}", path_, count_lines_before(line_at_) + 1); }

}  // namespace trireme::data
