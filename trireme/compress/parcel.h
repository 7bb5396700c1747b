#pragma once
// A part of the flat space as one message: strips of tensors that are encoded, and beside them what travels as it is.
// Where everything lies in it follows from the layout and the codec alone, so that both ends know it.
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include <trireme/compress/codec.h>
#include <trireme/space/layout.h>

namespace trireme::compress {

/// Whether a tensor travels encoded: not what has one dimension, and not what a pattern names, with * and ?.
bool is_coded(const space::Slot& slot, std::span<const std::string> excludes);

/// What a parcel is packed with.
struct Packing {
  const Codec& codec;
  bool by_matrix = false;  // as many whole rows as there are; otherwise strips that stay in a second-level cache
  std::span<const std::string> excludes{};
};

/// f32 alone.
struct Parcel {
  struct Item {
    space::Range range;
    size_t slot;  // among those that the parcel was planned for
    bool coded;
    Strip strip;
    size_t at, bytes;  // in the message
  };
  std::vector<Item> items;
  size_t bytes = 0;  // of the message
};

constexpr size_t aligned(size_t bytes) { return (bytes + 7) / 8 * 8; }  // messages in a message

/// What `range` has of the slots from `first` to `last`, behind `beside` bytes of the caller's.
Parcel plan_parcel(const space::Layout& layout, size_t first, size_t last, space::Range range, const Packing& packing,
                   size_t beside = 0);

/// Another one for each step and sender.
constexpr uint64_t seed_of(uint64_t seed, int64_t step, int sender) {
  return seed * 0x9e3779b97f4a7c15 + static_cast<uint64_t>(step) * 0xbf58476d1ce4e5b9 +
         static_cast<uint64_t>(sender) * 0x94d049bb133111eb;
}

/// The message's items, from the flat vector. A slot without a flag adds nothing.
void encode(Parcel& parcel, ErrorFeedback& codec, const std::byte* gradients, std::span<const uint8_t> flags,
            uint64_t seed, std::span<std::byte> message);
/// An item of a message is added to the flat vector. Throws Corruption, and has changed nothing then.
void add(const Parcel::Item& item, Codec& codec, std::span<const std::byte> message, std::byte* gradients);

}  // namespace trireme::compress
