#include <algorithm>
#include <array>
#include <cstdint>
#include <vector>

#include <trireme/comm/network/divide.h>
#include <trireme/space/kernels.h>

namespace trireme::comm::network {
namespace {

template <class T>
void divide_as(void* data, size_t count, int by) {
  T* const values = static_cast<T*>(data);
  for (size_t i = 0; i < count; i++) values[i] = static_cast<T>(values[i] / static_cast<T>(by));
}

/// Only the kernels know 16-bit floats, and they divide by the number of sources: the mean of a sum and `by` - 1 zeros.
void divide_halves(DType type, void* data, size_t count, int by) {
  constexpr size_t kBlock = 1024;
  static constexpr std::array<uint16_t, kBlock> kZeros{};
  std::vector<const void*> sources(static_cast<size_t>(by), kZeros.data());
  for (size_t begin = 0; begin < count; begin += kBlock) {
    void* const block = static_cast<uint16_t*>(data) + begin;
    sources[0] = block;
    space::kernels().reduce(type, Op::mean, &block, 1, sources.data(), by, std::min(kBlock, count - begin));
  }
}

}  // namespace

void divide(DType type, void* data, size_t count, int by) {
  if (by == 1) return;
  switch (type) {
    case DType::f32:
      return divide_as<float>(data, count, by);
    case DType::f64:
      return divide_as<double>(data, count, by);
    case DType::i32:
      return divide_as<int32_t>(data, count, by);
    case DType::i64:
      return divide_as<int64_t>(data, count, by);
    case DType::u8: {  // `by` may be more than a byte holds
      auto* const values = static_cast<uint8_t*>(data);
      for (size_t i = 0; i < count; i++) values[i] = static_cast<uint8_t>(values[i] / by);
      return;
    }
    case DType::f16:
    case DType::bf16:
      return divide_halves(type, data, count, by);
  }
}

}  // namespace trireme::comm::network
