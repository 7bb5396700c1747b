// fp16 and bf16.
#include <algorithm>
#include <cmath>

#include <trireme/base/error.h>
#include <trireme/compress/codecs.h>
#include <trireme/compress/kernels.h>

namespace trireme::compress {
namespace {

class SixteenBits final : public Codec {
 public:
  explicit SixteenBits(bool brain) : brain_(brain) {}

 private:
  uint8_t kind() const override { return static_cast<uint8_t>(brain_ ? Kind::bf16 : Kind::fp16); }
  size_t body_bytes(const Strip& strip) const override { return strip.count() * sizeof(uint16_t); }

  bool encode_body(const Strip& strip, const float* values, std::span<std::byte> body) override {
    auto* const out = reinterpret_cast<uint16_t*>(body.data());
    const Kernels& k = kernels();
    return is_finite((brain_ ? k.to_brain : k.to_half)(values, out, strip.count()));
  }

  /// Any bits are a number.
  void add_body(const Strip& strip, std::span<const std::byte> body, float* into) override {
    const auto* const from = reinterpret_cast<const uint16_t*>(body.data());
    const Kernels& k = kernels();
    (brain_ ? k.add_brain : k.add_half)(from, into, strip.count());
  }

  const bool brain_;
};

}  // namespace

std::unique_ptr<Codec> make_half() { return std::make_unique<SixteenBits>(false); }
std::unique_ptr<Codec> make_brain() { return std::make_unique<SixteenBits>(true); }

size_t kept_of(double rate, size_t count) {
  const auto wanted = static_cast<size_t>(std::llround(rate * static_cast<double>(count)));
  return std::min(count, std::max<size_t>(1, wanted));
}

void check_finite(const char* codec, const float* values, size_t count) {
  if (!is_finite(kernels().most(values, count)))
    fail<Corruption>("a gradient encoded by {} has values that are NaN or infinite, which its sender would have said",
                     codec);
}

}  // namespace trireme::compress
