#pragma once
// The bytes of a text file, plain or compressed with gzip.
#include <cstddef>
#include <memory>
#include <string>

struct gzFile_s;

namespace trireme::data {

/// Gives any part of a text. Whether the file is compressed is told by its first bytes, not by its name. Reading
/// forwards is cheap; going back unpacks a compressed file from its beginning again. Blocks on the file alone. Not
/// thread-safe.
class TextFile {
 public:
  /// Throws IoError when there is no such file or it is a folder.
  explicit TextFile(const std::string& path);

  /// Bytes of the text. A compressed file is unpacked once to learn it; nothing of that is kept. Throws Corruption when
  /// it is damaged or cut short.
  size_t size();
  /// Bytes [begin, end) of the text; fewer where it ends. Throws IoError and Corruption.
  std::string read(size_t begin, size_t end);
  const std::string& path() const { return path_; }

 private:
  size_t fill(char* into, size_t bytes);
  [[noreturn]] void damaged();

  struct Close {
    void operator()(gzFile_s* file) const;
  };
  std::string path_;
  std::unique_ptr<gzFile_s, Close> file_;
  size_t size_ = 0;
  bool measured_ = false;
};

}  // namespace trireme::data
