#pragma once
// What a writer tells rank 0 when it is done: a small file in the checkpoint's folder, gone when that is complete.
// Not installed: private to this folder. It needs no fsync: without a manifest nobody looks at it after a crash.
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include <trireme/checkpoint/files.h>
#include <trireme/checkpoint/writer.h>

namespace trireme::checkpoint {

/// Bytes of a file.
struct FileRange {
  uint64_t begin = 0, end = 0;
  bool operator==(const FileRange&) const = default;
};

struct Notice {
  struct Written {
    std::string name;
    uint64_t bytes = 0;            // of the whole file
    std::vector<FileRange> parts;  // that this writer wrote, in their order; none: all of it
  };
  int rank = 0;
  std::string error;  // why there will be nothing of it; "": all is well
  std::vector<Written> files;
  std::map<std::string, int64_t> scalars;

  static std::string name(const Attempt& attempt, int rank);
  void write(Files& files, const Attempt& attempt) const;
  /// Throws Corruption.
  static Notice read(Files& files, const Attempt& attempt, int rank);
};

}  // namespace trireme::checkpoint
