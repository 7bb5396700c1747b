#include <zlib.h>

#include <algorithm>
#include <filesystem>

#include <trireme/base/error.h>
#include <trireme/data/text.h>

namespace trireme::data {

TextFile::TextFile(const std::string& path) : path_(path) {
  if (std::filesystem::is_directory(path))
    fail<IoError>("{} is a folder; expected a file", path);  // opens, but cannot be read
  file_.reset(gzopen(path.c_str(), "rb"));
  if (file_ == nullptr) fail<IoError>("cannot open {}: {}", path, errno_text());
  gzbuffer(file_.get(), 1 << 18);
}

void TextFile::Close::operator()(gzFile_s* file) const { gzclose(file); }

size_t TextFile::size() {
  if (measured_) return size_;
  if (gzdirect(file_.get()) != 0) {
    size_ = std::filesystem::file_size(path_);
  } else {
    std::string ignored(1 << 18, '\0');
    size_ = static_cast<size_t>(gztell(file_.get()));
    for (size_t got = 0; (got = fill(ignored.data(), ignored.size())) > 0;) size_ += got;
  }
  measured_ = true;
  return size_;
}

std::string TextFile::read(size_t begin, size_t end) {
  if (begin >= end) return {};
  if (gzseek(file_.get(), static_cast<z_off_t>(begin), SEEK_SET) < 0) damaged();
  std::string text(end - begin, '\0');
  size_t filled = 0;
  for (size_t got = 0; filled < text.size() && (got = fill(text.data() + filled, text.size() - filled)) > 0;)
    filled += got;
  text.resize(filled);
  return text;
}

size_t TextFile::fill(char* into, size_t bytes) {
  const int got = gzread(file_.get(), into, static_cast<unsigned>(std::min<size_t>(bytes, 1 << 30)));
  int code = Z_OK;
  gzerror(file_.get(), &code);
  if (got < 0 || code == Z_BUF_ERROR) damaged();  // the latter: it ends before its checksum
  return static_cast<size_t>(got);
}

void TextFile::damaged() {
  int code = 0;
  const std::string text = gzerror(file_.get(), &code);
  if (code == Z_ERRNO) fail<IoError>("cannot read {}: {}", path_, errno_text());
  fail<Corruption>("{} is damaged or truncated ({}). Get the file again", path_, text);
}

}  // namespace trireme::data
