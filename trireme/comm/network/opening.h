#pragma once
// The first message of every operation: what the sender is about to do, and its data too where that fits.
#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include <trireme/comm/shm/rounds.h>
#include <trireme/space/dtype.h>

namespace trireme::comm::network {

using shm::Kind;
using shm::kOwnCounts;

/// What all ranks must agree on. Crosses the wire as it is.
struct Fingerprint {
  uint64_t sequence = 0;  // of the group's collectives; of the pair's messages, point to point
  uint64_t count = 0;
  uint64_t name = 0;    // hash
  uint64_t counts = 0;  // hash of the blocks' counts, where they are uneven; kOwnCounts: each rank has its own
  int32_t root = 0;
  Kind kind = Kind::none;  // none: point to point
  DType dtype = DType::u8;
  Op op = Op::sum;
  bool ring = false;            // depends on Options::direct_bytes, which may differ by mistake
  std::array<char, 64> text{};  // the name's beginning, for messages

  size_t bytes() const { return count * size_of(dtype); }
};

Fingerprint fingerprint(Kind kind, size_t count, DType type, std::string_view name);
bool agree(const Fingerprint& left, const Fingerprint& right);
/// "allreduce (sum) 'fc1.weight' of 5 × f32"
std::string describe(const Fingerprint& what);
/// Throws the Mismatch of two ranks that want different things; `more` is said about it at the end.
[[noreturn]] void disagree(const Fingerprint& mine, int me, const Fingerprint& theirs, int peer,
                           const std::string& more);

/// Of one size whatever it carries, because the receiver must know the size before it knows what comes.
struct Packet {
  static constexpr size_t kBytes = 1024;                         // every piece of a bucket has one
  static constexpr size_t kRoom = kBytes - sizeof(Fingerprint);  // bytes of data
  Fingerprint what;
  alignas(8) std::array<std::byte, kRoom> data;
};
static_assert(sizeof(Packet) == Packet::kBytes && alignof(Packet) == 8);

}  // namespace trireme::comm::network
