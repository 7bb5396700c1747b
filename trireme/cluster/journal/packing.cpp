#include <trireme/base/error.h>
#include <trireme/cluster/journal/packing.h>

namespace trireme::cluster::journal {

Packer& Packer::number(uint64_t value, int width) {
  for (int i = 0; i < width; i++) bytes += static_cast<char>(value >> (8 * i));
  return *this;
}

Packer& Packer::text(std::string_view value) {
  u32(static_cast<uint32_t>(value.size()));
  bytes += value;
  return *this;
}

Packer& Packer::numbers(const std::vector<int>& values) {
  u32(static_cast<uint32_t>(values.size()));
  for (int value : values) u32(static_cast<uint32_t>(value));
  return *this;
}

std::string_view Unpacker::piece(size_t bytes) {
  if (bytes > bytes_.size()) fail<Corruption>("{} bytes are missing", bytes - bytes_.size());
  const std::string_view result = bytes_.substr(0, bytes);
  bytes_.remove_prefix(bytes);
  return result;
}

uint64_t Unpacker::number(int width) {
  const std::string_view from = piece(static_cast<size_t>(width));
  uint64_t value = 0;
  for (int i = width - 1; i >= 0; i--) value = value << 8 | static_cast<uint8_t>(from[static_cast<size_t>(i)]);
  return value;
}

std::string Unpacker::text() {
  const uint32_t bytes = u32();
  return std::string(piece(bytes));
}

std::vector<int> Unpacker::numbers() {
  const size_t count = u32();
  if (count > bytes_.size() / 4)
    fail<Corruption>("{} numbers are said to follow {} bytes before the end", count, bytes_.size());
  std::vector<int> result(count);
  for (int& value : result) value = i32();
  return result;
}

void Unpacker::end() const {
  if (!bytes_.empty()) fail<Corruption>("{} bytes are too many", bytes_.size());
}

}  // namespace trireme::cluster::journal
