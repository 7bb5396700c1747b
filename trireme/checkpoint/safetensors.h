#pragma once
// The safetensors format: an 8-byte little-endian length, a JSON header, the tensors' bytes. Read by PyTorch, JAX, Rust
// and others.
#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

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

/// What a file says besides its tensors; reads the header alone. Throws IoError, and Corruption when it is no such
/// file.
std::map<std::string, std::string> read_metadata(const std::string& path);

}  // namespace trireme::checkpoint
