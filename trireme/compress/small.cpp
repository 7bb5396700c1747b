// int8 and sign: a scale for each block, then the elements. Blocks are short, as a tensor's gradients differ in size
// from place to place.
#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <limits>

#include <trireme/base/error.h>
#include <trireme/compress/codecs.h>
#include <trireme/compress/kernels.h>

namespace trireme::compress {
namespace {

constexpr size_t blocks_of(size_t count, size_t block) { return (count + block - 1) / block; }

/// Messages need not be aligned.
float scale_at(std::span<const std::byte> body, size_t block) {
  float scale = 0;
  std::memcpy(&scale, body.data() + block * sizeof scale, sizeof scale);
  return scale;
}

void put_scale(std::span<std::byte> body, size_t block, float scale) {
  std::memcpy(body.data() + block * sizeof scale, &scale, sizeof scale);
}

/// Between 0 and `most`.
void check_scales(const char* codec, std::span<const std::byte> body, size_t blocks, float largest) {
  for (size_t block = 0; block < blocks; block++)
    if (const float scale = scale_at(body, block); !(scale >= 0 && scale <= largest))
      fail<Corruption>("a gradient encoded by {} has {} as the scale of block {} of {}", codec, scale, block, blocks);
}

class Int8 final : public Codec {
  static constexpr size_t kBlock = 256;
  static constexpr float kLargest = std::numeric_limits<float>::max() / 256;  // × −128 is finite
  static constexpr float kSmallest = 0x1p-100f;  // below, a block is sent as zeros: 1 / scale would not be a number

  uint8_t kind() const override { return static_cast<uint8_t>(Kind::int8); }
  size_t body_bytes(const Strip& strip) const override {
    return blocks_of(strip.count(), kBlock) * sizeof(float) + strip.count();
  }

  bool encode_body(const Strip& strip, const float* values, std::span<std::byte> body) override {
    const Kernels& k = kernels();
    const size_t count = strip.count(), blocks = blocks_of(count, kBlock);
    auto* const out = reinterpret_cast<int8_t*>(body.data() + blocks * sizeof(float));
    std::array<uint32_t, kStreams> streams{};
    uint64_t seed = strip.seed;
    for (uint32_t& stream : streams) {
      seed = mixed(seed);
      stream = static_cast<uint32_t>(seed) | 1u;
    }
    for (size_t block = 0; block < blocks; block++) {
      const size_t begin = block * kBlock, size = std::min(kBlock, count - begin);
      const Magnitude most = k.most(values + begin, size);
      if (!is_finite(most)) return false;
      const float largest = __builtin_bit_cast(float, most);
      const float scale = largest < kSmallest ? 0 : std::min(largest / 127, kLargest);
      put_scale(body, block, scale);
      k.quantize(values + begin, out + begin, size, scale > 0 ? 1 / scale : 0, streams.data());
    }
    return true;
  }

  void add_body(const Strip& strip, std::span<const std::byte> body, float* into) override {
    const size_t count = strip.count(), blocks = blocks_of(count, kBlock);
    check_scales("int8", body, blocks, kLargest);
    const auto* const from = reinterpret_cast<const int8_t*>(body.data() + blocks * sizeof(float));
    for (size_t block = 0; block < blocks; block++) {
      const size_t begin = block * kBlock;
      kernels().add_scaled(from + begin, into + begin, std::min(kBlock, count - begin), scale_at(body, block));
    }
  }
};

class Sign final : public Codec {
  static constexpr size_t kBlock = 1024;

  uint8_t kind() const override { return static_cast<uint8_t>(Kind::sign); }
  size_t body_bytes(const Strip& strip) const override {
    return blocks_of(strip.count(), kBlock) * sizeof(float) + blocks_of(strip.count(), 8);
  }

  bool encode_body(const Strip& strip, const float* values, std::span<std::byte> body) override {
    const Kernels& k = kernels();
    const size_t count = strip.count(), blocks = blocks_of(count, kBlock);
    auto* const out = reinterpret_cast<uint8_t*>(body.data() + blocks * sizeof(float));
    for (size_t block = 0; block < blocks; block++) {
      const size_t begin = block * kBlock, size = std::min(kBlock, count - begin);
      const double magnitudes = k.sum_magnitudes(values + begin, size);
      if (!std::isfinite(magnitudes)) return false;
      put_scale(body, block, static_cast<float>(magnitudes / static_cast<double>(size)));
      k.pack_signs(values + begin, out + begin / 8, size);
    }
    return true;
  }

  void add_body(const Strip& strip, std::span<const std::byte> body, float* into) override {
    const size_t count = strip.count(), blocks = blocks_of(count, kBlock);
    check_scales("sign", body, blocks, std::numeric_limits<float>::max());
    const auto* const from = reinterpret_cast<const uint8_t*>(body.data() + blocks * sizeof(float));
    for (size_t block = 0; block < blocks; block++) {
      const size_t begin = block * kBlock;
      kernels().add_signs(from + begin / 8, into + begin, std::min(kBlock, count - begin), scale_at(body, block));
    }
  }
};

}  // namespace

std::unique_ptr<Codec> make_int8() { return std::make_unique<Int8>(); }
std::unique_ptr<Codec> make_sign() { return std::make_unique<Sign>(); }

}  // namespace trireme::compress
