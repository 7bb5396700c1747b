#include <fnmatch.h>

#include <algorithm>
#include <cstring>

#include <trireme/compress/parcel.h>
#include <trireme/space/kernels.h>

namespace trireme::compress {
namespace {

constexpr size_t kStripBytes = size_t{256} << 10;  // with a residual and two copies within a second-level cache

class Packer {
 public:
  Packer(const Packing& packing, size_t beside) : packing_(packing) { parcel.bytes = beside; }

  /// A part of a tensor. As a matrix it has whole rows; what is left of others, at both ends, travels as it is.
  void take(const space::Slot& slot, size_t number, space::Range part) {
    part.end = std::min(part.end, slot.range.begin + slot.elements() * sizeof(float));  // without padding
    if (part.begin >= part.end) return;
    if (!is_coded(slot, packing_.excludes)) return add(number, part, false, 1);
    if (!packing_.by_matrix) {
      for (size_t begin = part.begin; begin < part.end; begin += kStripBytes)
        add(number, {begin, std::min(part.end, begin + kStripBytes)}, true, 1);
      return;
    }
    const size_t row = slot.elements() / static_cast<size_t>(slot.shape[0]) * sizeof(float);
    const size_t first = (part.begin - slot.range.begin + row - 1) / row, last = (part.end - slot.range.begin) / row;
    const space::Range whole{slot.range.begin + first * row, slot.range.begin + last * row};
    if (first >= last) return add(number, part, false, 1);
    add(number, {part.begin, whole.begin}, false, 1);
    add(number, whole, true, last - first);
    add(number, {whole.end, part.end}, false, 1);
  }

  Parcel parcel;

 private:
  void add(size_t number, space::Range range, bool coded, size_t rows) {
    if (range.empty()) return;
    const size_t elements = range.size() / sizeof(float);
    const Strip strip{range.begin, rows, elements / rows, 0};
    const size_t bytes = coded ? packing_.codec.bytes(strip) : range.size();
    parcel.items.push_back({range, number, coded, strip, parcel.bytes, bytes});
    parcel.bytes += aligned(bytes);
  }

  const Packing& packing_;
};

}  // namespace

bool is_coded(const space::Slot& slot, std::span<const std::string> excludes) {
  if (slot.shape.size() < 2) return false;
  return std::none_of(excludes.begin(), excludes.end(),
                      [&](const std::string& pattern) { return fnmatch(pattern.c_str(), slot.name.c_str(), 0) == 0; });
}

Parcel plan_parcel(const space::Layout& layout, size_t first, size_t last, space::Range range, const Packing& packing,
                   size_t beside) {
  Packer packer(packing, beside);
  for (size_t slot = first; slot < last; slot++)
    if (const space::Range part = intersect(range, layout[slot].range); !part.empty())
      packer.take(layout[slot], slot - first, part);
  return std::move(packer.parcel);
}

void encode(Parcel& parcel, ErrorFeedback& codec, const std::byte* gradients, std::span<const uint8_t> flags,
            uint64_t seed, std::span<std::byte> message) {
  for (Parcel::Item& item : parcel.items) {
    const std::span<std::byte> to = message.subspan(item.at, item.bytes);
    if (!item.coded) {
      std::memcpy(to.data(), gradients + item.range.begin, item.bytes);
      flags[item.slot] == 0 ? codec.keep(item.strip) : codec.add_rest(item.strip, reinterpret_cast<float*>(to.data()));
    } else if (flags[item.slot] == 0) {
      codec.encode_nothing(item.strip, to);
      codec.keep(item.strip);
    } else {
      item.strip.seed = seed + item.range.begin;
      codec.encode(item.strip, reinterpret_cast<const float*>(gradients + item.range.begin), to);
    }
  }
}

void add(const Parcel::Item& item, Codec& codec, std::span<const std::byte> message, std::byte* gradients) {
  auto* const into = reinterpret_cast<float*>(gradients + item.range.begin);
  const std::span<const std::byte> from = message.subspan(item.at, item.bytes);
  if (item.coded) return codec.add(item.strip, from, into);
  space::kernels().accumulate(DType::f32, into, from.data(), item.strip.count());
}

}  // namespace trireme::compress
