#include <algorithm>
#include <cstring>

#include <trireme/checkpoint/order.h>

namespace trireme::checkpoint {
namespace {

/// [rows][columns] to [columns][rows], in blocks that stay in the first-level cache.
template <class T>
void transpose(const std::byte* from, std::byte* to, size_t rows, size_t columns) {
  constexpr size_t kBlock = 16;
  for (size_t r0 = 0; r0 < rows; r0 += kBlock)
    for (size_t c = 0; c < columns; c++)
      for (size_t r = r0; r < std::min(rows, r0 + kBlock); r++)
        std::memcpy(to + (c * rows + r) * sizeof(T), from + (r * columns + c) * sizeof(T), sizeof(T));
}

void transpose(const std::byte* from, std::byte* to, size_t rows, size_t columns, size_t element) {
  switch (element) {
    case 1:
      return transpose<uint8_t>(from, to, rows, columns);
    case 2:
      return transpose<uint16_t>(from, to, rows, columns);
    case 4:
      return transpose<uint32_t>(from, to, rows, columns);
    default:
      return transpose<uint64_t>(from, to, rows, columns);
  }
}

}  // namespace

Order Order::of(const space::Slot& slot) {
  Order order{.element = size_of(slot.dtype)};
  if (!slot.channels_last || slot.shape.size() != 4 || slot.elements() == 0) return order;
  order.channels = static_cast<size_t>(slot.shape[1]);
  order.positions = static_cast<size_t>(slot.shape[2] * slot.shape[3]);
  return order;
}

size_t Order::in_file(size_t in_memory) const {
  const size_t index = in_memory / element, position = index / channels, channel = index % channels;
  return (channel * positions + position) * element + in_memory % element;
}

void Order::to_file(const std::byte* memory, std::byte* file) const {
  transpose(memory, file, positions, channels, element);
}

void Order::to_memory(const std::byte* file, std::byte* memory) const {
  transpose(file, memory, channels, positions, element);
}

}  // namespace trireme::checkpoint
