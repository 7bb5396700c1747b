#pragma once
// What travels between machines: a head, a request or an answer, then data. Pure functions, no gRPC.
//
//   bytes 0 … 63      Head
//   bytes 64 … 127    Request or Reply
//   from byte 128     data, then `present`: data are aligned where the frame is
//
// A frame travels in pieces of kPiece bytes, and the rest in the last one: while one is on its way, the one before is
// unpacked.
//
// The first frame of a stream is a hello (its data: the job's text), the first answer a welcome (its data: why the
// worker is not admitted, or nothing).
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include <trireme/ps/messages.h>

namespace trireme::ps::network {

constexpr uint32_t kMagic = 0x70735254;
constexpr uint16_t kVersion = 5;
constexpr int kMostChannels = 16;
constexpr size_t kMostBytes = size_t{128} << 20;  // of a frame
constexpr size_t kPiece = size_t{256} << 10;

enum class Kind : uint8_t { hello, welcome, request, reply, count };

/// Little endian, as it stands in memory.
struct Head {
  uint32_t magic = kMagic;
  uint16_t version = kVersion;
  Kind kind = Kind::request;
  uint8_t channel = 0;               // hello: which one of
  uint32_t channels = 0;             // hello: so many
  int32_t worker = -1, server = -1;  // hello
  int32_t model = 0;                 // hello: the model's number, or kRoll
  uint64_t visit = 0;                // hello: the same on all channels of a lane, and when it comes back
  uint64_t data = 0, present = 0;    // bytes that follow
  uint64_t more[2] = {};
};
static_assert(sizeof(Head) == 64);
constexpr size_t kPrefix = sizeof(Head) + sizeof(Request);

/// A frame as it came. Views of the bytes that were given.
struct Frame {
  std::string fault;  // why it is none, or "": then only the magic of what is below makes sense
  Head head;
  Request request;  // of Kind::request
  Reply reply;      // of Kind::reply
  std::span<const std::byte> data{};
  std::span<const uint8_t> present{};
};

/// All but the views: of a frame's first bytes and its size. The bytes may come from anywhere.
Frame decode_prefix(std::span<const std::byte, kPrefix> prefix, uint64_t size);
Frame decode(std::span<const std::byte> bytes);

/// How long the frame is that begins so; 0 when these first bytes, or this size of its first piece, cannot be.
uint64_t size_of_frame(std::span<const std::byte, kPrefix> prefix, size_t first_piece);

}  // namespace trireme::ps::network
