#include <fmt/format.h>

#include <cstring>
#include <limits>

#include <trireme/base/error.h>
#include <trireme/compress/codec.h>

namespace trireme::compress {
namespace {

enum class State : uint8_t { values, nothing, not_finite };

struct Header {
  uint8_t kind;
  State state;
  uint16_t version;
  uint32_t count;
};
static_assert(sizeof(Header) == Codec::kHeader);
constexpr uint16_t kVersion = 1;

void put_header(std::span<std::byte> message, uint8_t kind, State state, size_t count) {
  const Header header{kind, state, kVersion, static_cast<uint32_t>(count)};
  std::memcpy(message.data(), &header, sizeof header);
}

}  // namespace

bool Codec::encode(const Strip& strip, const float* values, std::span<std::byte> message) {
  const std::span<std::byte> body = message.subspan(kHeader);
  const bool finite = encode_body(strip, values, body);
  if (!finite) std::memset(body.data(), 0, body.size());
  put_header(message, kind(), finite ? State::values : State::not_finite, strip.count());
  return finite;
}

void Codec::encode_nothing(const Strip& strip, std::span<std::byte> message) const {
  std::memset(message.data(), 0, message.size());
  put_header(message, kind(), State::nothing, strip.count());
}

void Codec::add(const Strip& strip, std::span<const std::byte> message, float* into) {
  const size_t count = strip.count(), expected = bytes(strip);
  if (message.size() != expected)
    fail<Corruption>("an encoded gradient of {} elements has {} bytes, and {} were expected: it was cut or is none",
                     count, message.size(), expected);
  Header header{};
  std::memcpy(&header, message.data(), sizeof header);
  if (header.kind != kind() || header.version != kVersion)
    fail<Corruption>(
        "an encoded gradient is of codec {}, version {}, and {}, version {}, was expected: do all "
        "processes have the same program?",
        header.kind, header.version, kind(), kVersion);
  if (header.count != count)
    fail<Corruption>("an encoded gradient says that it has {} elements, and {} were expected", header.count, count);
  switch (header.state) {
    case State::values:
      return add_body(strip, message.subspan(kHeader), into);
    case State::nothing:
      return;
    case State::not_finite:
      for (size_t i = 0; i < count; i++) into[i] = std::numeric_limits<float>::quiet_NaN();
      return;
  }
  fail<Corruption>("an encoded gradient is in state {}, which there is not", static_cast<int>(header.state));
}

}  // namespace trireme::compress
