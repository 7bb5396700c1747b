// A count-sketch (Charikar et al., 2002): three rows of cells, in each of which an element has a cell and a sign by
// chance. Its estimate is the least that all three say, and nothing where they do not agree on the sign: among many
// elements that are nearly nothing few seem large then. The largest estimates are recovered. Where nothing is large,
// they are noise: so the sender, who knows both, tells by which factor what was recovered comes nearest to what was
// meant. What is left is then never more than what there was, and error feedback converges.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>

#include <trireme/base/error.h>
#include <trireme/compress/codecs.h>
#include <trireme/compress/kernels.h>
#include <trireme/compress/largest.h>

namespace trireme::compress {
namespace {

constexpr size_t kRows = 3, kBits = 20;

class Sketch final : public Codec {
 public:
  explicit Sketch(double rate) : rate_(rate) {}

 private:
  uint8_t kind() const override { return Spec::sketch; }
  /// In a row.
  size_t cells(const Strip& strip) const {
    return std::clamp<size_t>(kept_of(rate_, strip.count()) / kRows, 1, size_t{1} << kBits);
  }
  /// A cell in four, at most: more would be covered by the others' noise.
  size_t recovered(const Strip& strip) const { return std::min(strip.count(), std::max<size_t>(1, cells(strip) / 4)); }
  size_t body_bytes(const Strip& strip) const override {
    return sizeof(uint64_t) + sizeof(float) + kRows * cells(strip) * sizeof(float);
  }

  /// Of one element: a cell in each row, and its sign there, from one number by chance.
  struct Cells {
    Cells(uint64_t seed, size_t element, size_t width) : width(width), chance(mixed(seed + element)) {}
    size_t index(size_t row) const {
      return ((((chance >> (row * kBits)) & ((size_t{1} << kBits) - 1)) * width) >> kBits) + row * width;
    }
    float sign(size_t row) const { return ((chance >> (63 - row)) & 1) != 0 ? 1.0f : -1.0f; }
    size_t width;
    uint64_t chance;
  };

  bool encode_body(const Strip& strip, const float* values, std::span<std::byte> body) override {
    const size_t count = strip.count(), width = cells(strip);
    if (!is_finite(kernels().most(values, count))) return false;
    table_.assign(kRows * width, 0);
    for (size_t i = 0; i < count; i++) {
      const Cells at(strip.seed, i, width);
      for (size_t row = 0; row < kRows; row++) table_[at.index(row)] += at.sign(row) * values[i];
    }
    if (!is_finite(kernels().most(table_.data(), table_.size()))) return false;
    double along = 0, squares = 0;
    for (const uint32_t index : recover(strip, strip.seed)) {
      along += static_cast<double>(estimates_[index]) * static_cast<double>(values[index]);
      squares += static_cast<double>(estimates_[index]) * static_cast<double>(estimates_[index]);
    }
    const float factor = squares > 0 && along > 0 ? static_cast<float>(std::min(1.0, along / squares)) : 0;
    std::memcpy(body.data(), &strip.seed, sizeof(uint64_t));
    std::memcpy(body.data() + sizeof(uint64_t), &factor, sizeof factor);
    std::memcpy(body.data() + sizeof(uint64_t) + sizeof factor, table_.data(), table_.size() * sizeof(float));
    return true;
  }

  /// From table_, into estimates_.
  std::span<const uint32_t> recover(const Strip& strip, uint64_t seed) {
    const size_t count = strip.count(), width = cells(strip);
    if (estimates_.size() < count) estimates_.resize(count);
    for (size_t i = 0; i < count; i++) {
      const Cells at(seed, i, width);
      float least = 0, most = 0;
      for (size_t row = 0; row < kRows; row++) {
        const float here = at.sign(row) * table_[at.index(row)];
        least = row == 0 ? here : std::min(least, here);
        most = row == 0 ? here : std::max(most, here);
      }
      estimates_[i] = least > 0 ? least : most < 0 ? most : 0;
    }
    return largest_.find(estimates_.data(), count, recovered(strip));
  }

  void add_body(const Strip& strip, std::span<const std::byte> body, float* into) override {
    uint64_t seed = 0;
    float factor = 0;
    table_.resize(kRows * cells(strip));
    std::memcpy(&seed, body.data(), sizeof seed);
    std::memcpy(&factor, body.data() + sizeof seed, sizeof factor);
    std::memcpy(table_.data(), body.data() + sizeof seed + sizeof factor, table_.size() * sizeof(float));
    if (!(factor >= 0 && factor <= 1))
      fail<Corruption>("a gradient encoded by sketch has {} as its factor, which is within 0 and 1", factor);
    check_finite("sketch", table_.data(), table_.size());
    for (const uint32_t index : recover(strip, seed)) into[index] += factor * estimates_[index];
  }

  const double rate_;
  Largest largest_;
  std::vector<float> table_, estimates_;
};

}  // namespace

std::unique_ptr<Codec> make_sketch(double rate) { return std::make_unique<Sketch>(rate); }

}  // namespace trireme::compress
