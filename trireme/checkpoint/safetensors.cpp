#include <fcntl.h>
#include <nlohmann/json.hpp>
#include <unistd.h>

#include <cstdio>
#include <filesystem>
#include <fstream>

#include <trireme/base/descriptor.h>
#include <trireme/base/error.h>
#include <trireme/checkpoint/safetensors.h>

namespace trireme::checkpoint {
namespace {

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

void write_safetensors(const std::string& path, const std::vector<NamedTensor>& tensors,
                       const std::map<std::string, std::string>& metadata) {
  nlohmann::ordered_json header;
  if (!metadata.empty()) header["__metadata__"] = metadata;
  size_t offset = 0;
  for (const NamedTensor& tensor : tensors) {
    header[tensor.name] = {
        {"dtype", tensor.type}, {"shape", tensor.shape}, {"data_offsets", {offset, offset + tensor.bytes}}};
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

std::map<std::string, std::string> read_metadata(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) fail<IoError>("cannot open {}: {}", path, errno_text());
  uint64_t length = 0;
  file.read(reinterpret_cast<char*>(&length), sizeof length);
  std::error_code unknown;
  const uint64_t size = std::filesystem::file_size(path, unknown);
  if (!file || unknown || length > size - sizeof length)
    fail<Corruption>("{} is no safetensors file, or cut short", path);
  std::string text(length, '\0');
  file.read(text.data(), static_cast<std::streamsize>(length));
  if (!file) fail<IoError>("cannot read {}: {}", path, errno_text());
  try {
    const auto header = nlohmann::json::parse(text);
    return header.contains("__metadata__") ? header["__metadata__"].get<std::map<std::string, std::string>>()
                                           : std::map<std::string, std::string>{};
  } catch (const nlohmann::json::exception& error) {
    fail<Corruption>("{} is no safetensors file: {}", path, error.what());
  }
}

}  // namespace trireme::checkpoint
