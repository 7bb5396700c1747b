#pragma once
// What a checkpoint is: the file that makes it one. Written last; a folder without it is half-written.
#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include <trireme/base/error.h>
#include <trireme/checkpoint/format.h>
#include <trireme/state/visitor.h>

namespace trireme::checkpoint {

/// Written by a newer Trireme than this one.
class NewerFormat : public InvalidArgument {
 public:
  using InvalidArgument::InvalidArgument;
};

/// Who wrote it.
struct CrewNote {
  int workers = 0, machines = 0, servers = 0;
  std::string sync;  // as on the command line: "allreduce"
  bool operator==(const CrewNote&) const = default;
};

struct FileNote {
  std::string name;
  uint64_t bytes = 0;
  std::string sha256;  // lower-case hexadecimal
  bool operator==(const FileNote&) const = default;
};

/// A value.
struct Manifest {
  int version = kFormatVersion;
  std::string library;  // version of Trireme that wrote it
  int64_t step = 0, epoch = 0;
  int64_t time = 0;  // seconds since 1970
  std::map<std::string, int64_t> scalars;
  state::About about;
  std::vector<std::string> vectors;                      // that are in its files
  std::map<std::string, std::string> options, metadata;  // of the job; of the model
  std::map<std::string, double> metrics;                 // may be NaN or infinite
  CrewNote crew;
  std::vector<FileNote> files;

  /// All bytes of its files.
  uint64_t bytes() const;
  std::string encode() const;
  /// Throws Corruption that begins with `where` for anything that encode() would not have written, NewerFormat for a
  /// newer version.
  static Manifest parse(std::string_view text, const std::string& where);
};

/// Of this library: "0.1.0".
std::string library_version();

}  // namespace trireme::checkpoint
