#pragma once
// The safetensors format: an 8-byte little-endian length, a JSON header, the tensors' bytes without holes. Read by
// PyTorch, JAX, Rust and others. Strict in both directions, as the format's specification has it.
#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <trireme/checkpoint/files.h>

namespace trireme::checkpoint {

struct NamedTensor {
  std::string name;
  std::string type;  // as the format has it: F64, F32, F16, BF16, I64, I32, I16, I8, U8, BOOL
  std::vector<int64_t> shape;
  const void* data = nullptr;  // row-major
  size_t bytes = 0;
};

/// Two names may have the same data: it is written twice, as the format allows no overlap. Writes to a temporary file
/// beside `path` and renames it: `path` is the old file or the whole new one, never a part. Throws IoError.
void write_safetensors(const std::string& path, const std::vector<NamedTensor>& tensors,
                       const std::map<std::string, std::string>& metadata);
void write_safetensors(Files& files, const std::string& path, const std::vector<NamedTensor>& tensors,
                       const std::map<std::string, std::string>& metadata);

/// What a file says besides its tensors; reads the header alone. Throws IoError, and Corruption when it is no such
/// file.
std::map<std::string, std::string> read_metadata(const std::string& path);

/// A tensor in a file. `begin` and `end` are bytes from the beginning of the file.
struct StoredTensor {
  std::string name, type;
  std::vector<int64_t> shape;
  uint64_t begin = 0, end = 0;

  uint64_t bytes() const { return end - begin; }
  uint64_t elements() const;
  /// "conv1.weight F32[6,1,5,5]"
  std::string describe() const;
  bool operator==(const StoredTensor&) const = default;
};

/// A file's beginning. A value.
struct Header {
  std::vector<StoredTensor> tensors;  // by place
  std::map<std::string, std::string> metadata;
  uint64_t bytes = 0;       // length and header: where the first tensor begins
  uint64_t file_bytes = 0;  // of the whole file

  /// `text` is the header without its length. Throws Corruption that begins with `where` for all that the format does
  /// not allow: holes, overlaps, trailing bytes, unknown types, other sizes than shapes, a name twice, …
  static Header parse(std::string_view text, uint64_t file_bytes, const std::string& where);
};

/// Length and header of tensors that follow each other in this order; `begin` and `end` of each are set. Pure: the same
/// on all ranks. Throws InvalidArgument for a name twice, an unknown type, text that is not UTF-8, a header too long.
std::string make_header(std::vector<StoredTensor>& tensors, const std::map<std::string, std::string>& metadata);

/// A file to read. Opening reads and checks the header. read() is thread-safe.
class SafetensorsFile {
 public:
  /// Throws IoError, and Corruption when it is no such file or a damaged one.
  SafetensorsFile(Files& files, const std::string& path);

  const Header& header() const { return header_; }
  const std::string& path() const { return file_.path(); }
  /// nullptr when there is none.
  const StoredTensor* find(const std::string& name) const;
  /// Bytes of a tensor from its byte `at` on.
  void read(const StoredTensor& tensor, uint64_t at, std::span<std::byte> into) const;
  std::vector<std::byte> read(const StoredTensor& tensor) const;
  const File& file() const { return file_; }

 private:
  File file_;
  Header header_;
  std::map<std::string, size_t> by_name_;
};

}  // namespace trireme::checkpoint
