// A count-sketch (Charikar et al., 2002): three rows of cells, in each of which an element has a cell and a sign by
// chance. Its estimate is the least that all three say, and nothing where they do not agree on the sign: among many
// elements that are nearly nothing few seem large then. The largest estimates are recovered: so the cells say which
// elements are meant, without their indices. Estimates have others' noise in them, and where nothing is large they are
// nothing else. But the sender knows what will be recovered, and sends these few values themselves: what is left is
// less than what there was, and error feedback converges.
#include <algorithm>
#include <cstring>
#include <vector>

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
  uint8_t kind() const override { return static_cast<uint8_t>(Kind::sketch); }
  /// In a row: with the values of what is recovered, as many numbers as the rate says.
  size_t cells(const Strip& strip) const {
    return std::clamp<size_t>(4 * kept_of(rate_, strip.count()) / (4 * kRows + 1), 1, size_t{1} << kBits);
  }
  /// A cell in four, at most: more would be covered by the others' noise.
  size_t recovered(const Strip& strip) const { return std::min(strip.count(), std::max<size_t>(1, cells(strip) / 4)); }
  size_t body_bytes(const Strip& strip) const override {
    return sizeof(uint64_t) + (recovered(strip) + kRows * cells(strip)) * sizeof(float);
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
    values_.clear();
    for (const uint32_t index : recover(strip, strip.seed)) values_.push_back(values[index]);
    std::byte* const at = body.data() + sizeof(uint64_t);
    std::memcpy(body.data(), &strip.seed, sizeof(uint64_t));
    std::memcpy(at, values_.data(), values_.size() * sizeof(float));
    std::memcpy(at + values_.size() * sizeof(float), table_.data(), table_.size() * sizeof(float));
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
    values_.resize(recovered(strip));
    table_.resize(kRows * cells(strip));
    const std::byte* const at = body.data() + sizeof seed;
    std::memcpy(&seed, body.data(), sizeof seed);
    std::memcpy(values_.data(), at, values_.size() * sizeof(float));
    std::memcpy(table_.data(), at + values_.size() * sizeof(float), table_.size() * sizeof(float));
    check_finite("sketch", values_.data(), values_.size());
    check_finite("sketch", table_.data(), table_.size());
    const std::span<const uint32_t> found = recover(strip, seed);
    for (size_t i = 0; i < found.size(); i++) into[found[i]] += values_[i];
  }

  const double rate_;
  Largest largest_;
  std::vector<float> values_, table_, estimates_;
};

}  // namespace

std::unique_ptr<Codec> make_sketch(double rate) { return std::make_unique<Sketch>(rate); }

}  // namespace trireme::compress
