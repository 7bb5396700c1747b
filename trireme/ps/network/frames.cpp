#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include <trireme/ps/network/frames.h>

namespace trireme::ps::network {
namespace {

constexpr uint64_t kMostSlots = uint64_t{1} << 20;  // of a chunk; as many as a job may have
constexpr uint64_t kMostText = uint64_t{1} << 20;

/// How many bytes of data a request brings.
uint64_t brings(const Request& r) {
  switch (r.verb) {
    case Verb::push:
      return (r.flags & kCoded) != 0 ? r.extra : r.bytes;
    case Verb::sparse_push:
    case Verb::sparse_pull:
    case Verb::take_state:
    case Verb::take_rows:
      return r.bytes;
    case Verb::set:
      return (r.flags & kInPlace) != 0 ? 0 : r.bytes;
    default:
      return 0;
  }
}

std::string fault_of(const Head& head, const Request& r) {
  if (r.verb >= Verb::count) return fmt::format("there is no request {}", static_cast<int>(r.verb));
  if (r.id == 0) return "a request without a number";
  if (head.data != brings(r))
    return fmt::format("a {} of {} bytes that brings {}", name_of(r.verb), brings(r), head.data);
  if (head.present != 0 && (r.verb != Verb::push || head.present > kMostSlots))
    return fmt::format("{} slots in a {}", head.present, name_of(r.verb));
  return "";
}

std::string fault_of(const Head& head, const Reply& r) {
  if (r.verb >= Verb::count)
    return fmt::format("an answer to request {}, which there is not", static_cast<int>(r.verb));
  if (r.status > Status::peer_lost)
    return fmt::format("an answer with status {}, which there is not", static_cast<int>(r.status));
  if (head.data != r.bytes || head.present != 0)
    return fmt::format("an answer of {} bytes that brings {} and {}", r.bytes, head.data, head.present);
  return "";
}

std::string fault_of(const Head& head) {
  if (head.kind == Kind::welcome) return head.data > kMostText || head.present != 0 ? "a welcome of many words" : "";
  if (head.worker < 0 || head.server < 0) return fmt::format("worker {} greets server {}", head.worker, head.server);
  if (head.channels < 1 || head.channels > kMostChannels || head.channel >= head.channels)
    return fmt::format("channel {} of {}; there can be {}", head.channel, head.channels, kMostChannels);
  return head.present != 0 ? "slots in a greeting" : "";
}

}  // namespace

Frame decode_prefix(std::span<const std::byte, kPrefix> prefix, uint64_t size) {
  Frame frame;
  std::memcpy(&frame.head, prefix.data(), sizeof frame.head);
  const Head& head = frame.head;
  const uint64_t rest = size - kPrefix;
  if (head.magic != kMagic) {
    frame.fault = "what came is no message of a parameter server or its worker";
  } else if (head.version != kVersion) {
    frame.fault =
        fmt::format("version {} of the protocol, here it is {}: all hosts must run the same version of Trireme",
                    head.version, kVersion);
  } else if (size < kPrefix || size > kMostBytes || head.data > rest || head.present != rest - head.data) {
    frame.fault = fmt::format("a message of {} bytes that says it has {} and {}", size, head.data, head.present);
  } else if (head.kind == Kind::request) {
    std::memcpy(&frame.request, prefix.data() + sizeof head, sizeof frame.request);
    frame.fault = fault_of(head, frame.request);
  } else if (head.kind == Kind::reply) {
    std::memcpy(&frame.reply, prefix.data() + sizeof head, sizeof frame.reply);
    frame.fault = fault_of(head, frame.reply);
  } else {
    frame.fault = head.kind < Kind::count ? fault_of(head)
                                          : fmt::format("there is no message of kind {}", static_cast<int>(head.kind));
  }
  return frame;
}

Frame decode(std::span<const std::byte> bytes) {
  if (bytes.size() < kPrefix)
    return {.fault = fmt::format("a message of {} bytes; none has fewer than {}", bytes.size(), kPrefix)};
  Frame frame = decode_prefix(bytes.first<kPrefix>(), bytes.size());
  if (!frame.fault.empty()) return frame;
  frame.data = bytes.subspan(kPrefix, frame.head.data);
  const auto present = bytes.subspan(kPrefix + frame.head.data);
  frame.present = {reinterpret_cast<const uint8_t*>(present.data()), present.size()};
  return frame;
}

uint64_t size_of_frame(std::span<const std::byte, kPrefix> prefix, size_t first_piece) {
  Head head;
  std::memcpy(&head, prefix.data(), sizeof head);
  if (head.magic != kMagic || head.data > kMostBytes || head.present > kMostBytes) return 0;
  const uint64_t size = kPrefix + head.data + head.present;
  return size <= kMostBytes && first_piece == std::min<uint64_t>(size, kPiece) ? size : 0;
}

}  // namespace trireme::ps::network
