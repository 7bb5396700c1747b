#pragma once
// The safetensors format: an 8-byte little-endian length, a JSON header, the tensors' bytes. Read by PyTorch, JAX, Rust and others.
#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include <trireme/space/dtype.h>

namespace trireme::checkpoint {

struct NamedTensor {
  std::string name;
  DType dtype = DType::f32;
  std::vector<int64_t> shape;
  const void* data = nullptr;  // row-major
  size_t bytes = 0;
};

/// Writes to a temporary file beside `path` and renames it: `path` is the old file or the whole new one, never a part. Throws IoError.
void write_safetensors(const std::string& path, const std::vector<NamedTensor>& tensors, const std::map<std::string, std::string>& metadata);

}  // namespace trireme::checkpoint
