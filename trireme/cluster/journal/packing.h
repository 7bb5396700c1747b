#pragma once
// Numbers and texts as bytes, little-endian, and back.
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace trireme::cluster::journal {

class Packer {
 public:
  Packer& u8(uint8_t value) { return number(value, 1); }
  Packer& u32(uint32_t value) { return number(value, 4); }
  Packer& u64(uint64_t value) { return number(value, 8); }
  Packer& i64(int64_t value) { return number(static_cast<uint64_t>(value), 8); }
  Packer& flag(bool value) { return u8(value ? 1 : 0); }
  Packer& text(std::string_view value);
  Packer& numbers(const std::vector<int>& values);
  std::string bytes;

 private:
  Packer& number(uint64_t value, int width);
};

/// Throws Corruption where the bytes end too soon, or are too many (at end()).
class Unpacker {
 public:
  explicit Unpacker(std::string_view bytes) : bytes_(bytes) {}
  uint8_t u8() { return static_cast<uint8_t>(number(1)); }
  uint32_t u32() { return static_cast<uint32_t>(number(4)); }
  uint64_t u64() { return number(8); }
  int64_t i64() { return static_cast<int64_t>(number(8)); }
  int i32() { return static_cast<int>(static_cast<int32_t>(u32())); }
  bool flag() { return u8() != 0; }
  std::string text();
  std::vector<int> numbers();
  bool done() const { return bytes_.empty(); }
  void end() const;

 private:
  uint64_t number(int width);
  std::string_view piece(size_t bytes);
  std::string_view bytes_;
};

}  // namespace trireme::cluster::journal
