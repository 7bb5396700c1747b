#pragma once
// All that a server knows of a shard as a run of bytes: what a new backup begins with. For servers of one build alone.
#include <cstddef>
#include <cstring>
#include <span>
#include <string>
#include <type_traits>
#include <vector>

#include <trireme/base/error.h>

namespace trireme::ps {

class CopyWriter {
 public:
  template <class T>
  requires std::is_trivially_copyable_v<T>
  void put(const T& value) { put_bytes(std::as_bytes(std::span(&value, 1))); }
  /// Its length is known to whoever reads.
  void put_bytes(std::span<const std::byte> bytes) { bytes_.insert(bytes_.end(), bytes.begin(), bytes.end()); }
  void put(const std::string& text) {
    put(text.size());
    put_bytes(std::as_bytes(std::span(text.data(), text.size())));
  }
  std::span<const std::byte> bytes() const { return bytes_; }

 private:
  std::vector<std::byte> bytes_;
};

/// Throws Corruption where it ends too early, or a value is none of its type's.
class CopyReader {
 public:
  explicit CopyReader(std::span<const std::byte> bytes) : left_(bytes) {}

  template <class T>
  requires std::is_trivially_copyable_v<T> T get() {
    if constexpr (std::is_same_v<T, bool>) return get<uint8_t>(1) != 0;
    T value;
    std::memcpy(&value, take(sizeof value).data(), sizeof value);
    return value;
  }
  /// One between 0 and `most`.
  template <class T>
  T get(T most) {
    const T value = get<T>();
    bool fine = value <= most;
    if constexpr (!std::is_unsigned_v<T>) fine = fine && value >= T{};
    if (!fine) fail<Corruption>("the copy of a shard has a value that cannot be");
    return value;
  }
  void get_bytes(std::span<std::byte> to) { std::memcpy(to.data(), take(to.size()).data(), to.size()); }
  std::span<const std::byte> take(size_t bytes) {
    if (bytes > left_.size()) fail<Corruption>("the copy of a shard ends {} bytes too early", bytes - left_.size());
    const auto taken = left_.first(bytes);
    left_ = left_.subspan(bytes);
    return taken;
  }
  std::string text() {
    const auto bytes = take(get<size_t>());
    return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
  }

 private:
  std::span<const std::byte> left_;
};

}  // namespace trireme::ps
