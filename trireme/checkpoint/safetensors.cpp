#include <trireme/checkpoint/safetensors.h>

#include <fcntl.h>
#include <unistd.h>

#include <trireme/base/descriptor.h>
#include <trireme/base/error.h>
#include <cstdio>
#include <filesystem>
#include <nlohmann/json.hpp>

namespace trireme::checkpoint {
namespace {

const char* format_name(DType type) {
  constexpr const char* names[] = {"F32", "F64", "F16", "BF16", "I32", "I64", "U8"};
  return names[static_cast<size_t>(type)];
}

void write_all(int file, const void* data, size_t bytes, const std::string& path) {
  const auto* next = static_cast<const char*>(data);
  while (bytes > 0) {
    const ssize_t done = write(file, next, bytes);
    if (done < 0 && errno == EINTR) continue;
    if (done < 0) fail<IoError>("cannot write {}: {}", path, errno_text());
    next += done;
    bytes -= static_cast<size_t>(done);
  }
}

}  // namespace

void write_safetensors(const std::string& path, const std::vector<NamedTensor>& tensors, const std::map<std::string, std::string>& metadata) {
  nlohmann::ordered_json header;
  if (!metadata.empty()) header["__metadata__"] = metadata;
  size_t offset = 0;
  for (const NamedTensor& tensor : tensors) {
    header[tensor.name] = {{"dtype", format_name(tensor.dtype)}, {"shape", tensor.shape}, {"data_offsets", {offset, offset + tensor.bytes}}};
    offset += tensor.bytes;
  }
  std::string text = header.dump();
  text.append((8 - text.size() % 8) % 8, ' ');
  const uint64_t length = text.size();

  const std::string temporary = fmt::format("{}.{}.tmp", path, getpid());
  try {
    const Descriptor file(open(temporary.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644));
    if (!file) fail<IoError>("cannot write {}: {}", path, errno_text());
    write_all(file.get(), &length, sizeof length, path);
    write_all(file.get(), text.data(), text.size(), path);
    for (const NamedTensor& tensor : tensors) write_all(file.get(), tensor.data, tensor.bytes, path);
    if (fsync(file.get()) != 0) fail<IoError>("cannot write {}: {}", path, errno_text());
    if (std::rename(temporary.c_str(), path.c_str()) != 0) fail<IoError>("cannot rename to {}: {}", path, errno_text());
  } catch (...) {
    unlink(temporary.c_str());
    throw;
  }
}

}  // namespace trireme::checkpoint
