#include "assembly.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>

namespace trireme::ps::network {

std::string Assembly::begin(Reader& reader) {
  std::array<std::byte, kPrefix> prefix{};
  const size_t size = reader.left();
  if (size < kPrefix) return decode(std::span(prefix).first(size)).fault;
  reader.copy(prefix.data(), kPrefix);
  const uint64_t bytes = size_of_frame(prefix, size);
  frame_ = decode_prefix(prefix, bytes > 0 ? bytes : size);
  if (!frame_.fault.empty()) return frame_.fault;
  if (bytes == 0) return fmt::format("a first piece of {} bytes", size);
  bytes_ = bytes;
  here_ = kPrefix;
  return "";
}

std::string Assembly::check(size_t piece) const {
  if (piece == std::min<uint64_t>(kPiece, bytes_ - here_)) return "";
  return fmt::format("a piece of {} bytes, where {} are missing", piece, bytes_ - here_);
}

void Assembly::append(Reader& reader) {
  const size_t more = reader.left();
  if (place_ != nullptr) reader.copy(place_ + (here_ - kPrefix), more);
  here_ += more;
}

}  // namespace trireme::ps::network
