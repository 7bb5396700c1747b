#pragma once
#include <cstdlib>
#include <filesystem>
#include <string>

#include <trireme/base/error.h>

namespace trireme::tools {

/// A temporary folder of a new name, in the system's place for such or in `in`, removed with all that is in it.
class ScratchFolder {
 public:
  /// Throws IoError.
  explicit ScratchFolder(const std::string& prefix, const std::filesystem::path& in = {}) {
    std::string text = ((in.empty() ? std::filesystem::temp_directory_path() : in) / (prefix + "-XXXXXX")).string();
    if (mkdtemp(text.data()) == nullptr) fail<IoError>("cannot make a temporary folder {}: {}", text, errno_text());
    path_ = text;
  }
  ~ScratchFolder() {
    std::error_code ignored;  // at the worst a folder stays there
    std::filesystem::remove_all(path_, ignored);
  }
  ScratchFolder(const ScratchFolder&) = delete;
  ScratchFolder& operator=(const ScratchFolder&) = delete;

  const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
};

}  // namespace trireme::tools
