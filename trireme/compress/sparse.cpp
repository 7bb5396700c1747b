// topk and randomk: a few elements, the rest not at all.
#include <cstring>
#include <vector>

#include <trireme/base/error.h>
#include <trireme/compress/codecs.h>
#include <trireme/compress/kernels.h>
#include <trireme/compress/largest.h>

namespace trireme::compress {
namespace {

class TopK final : public Codec {
 public:
  explicit TopK(double rate) : rate_(rate) {}

 private:
  uint8_t kind() const override { return static_cast<uint8_t>(Kind::topk); }
  size_t body_bytes(const Strip& strip) const override {
    return kept_of(rate_, strip.count()) * (sizeof(uint32_t) + sizeof(float));
  }

  /// Indices, then values.
  bool encode_body(const Strip& strip, const float* values, std::span<std::byte> body) override {
    if (!is_finite(kernels().most(values, strip.count()))) return false;
    const std::span<const uint32_t> kept = largest_.find(values, strip.count(), kept_of(rate_, strip.count()));
    std::memcpy(body.data(), kept.data(), kept.size_bytes());
    std::byte* at = body.data() + kept.size_bytes();
    for (const uint32_t index : kept) {
      std::memcpy(at, values + index, sizeof(float));
      at += sizeof(float);
    }
    return true;
  }

  void add_body(const Strip& strip, std::span<const std::byte> body, float* into) override {
    const size_t count = strip.count(), kept = kept_of(rate_, count);
    indices_.resize(kept);
    values_.resize(kept);
    std::memcpy(indices_.data(), body.data(), kept * sizeof(uint32_t));
    std::memcpy(values_.data(), body.data() + kept * sizeof(uint32_t), kept * sizeof(float));
    for (size_t i = 0; i < kept; i++)
      if (indices_[i] >= count || (i > 0 && indices_[i] <= indices_[i - 1]))
        fail<Corruption>("a gradient encoded by topk has {} as index {} of {}{}, of {} elements: indices rise",
                         indices_[i], i, kept, i > 0 ? fmt::format(", after {}", indices_[i - 1]) : std::string(),
                         count);
    check_finite("topk", values_.data(), kept);
    for (size_t i = 0; i < kept; i++) into[indices_[i]] += values_[i];
  }

  const double rate_;
  Largest largest_;
  std::vector<uint32_t> indices_;
  std::vector<float> values_;
};

/// Parts are as equal as they can be, and what stands for one is scaled by its size.
class RandomK final : public Codec {
 public:
  RandomK(double rate, bool unbiased) : rate_(rate), unbiased_(unbiased) {}

 private:
  uint8_t kind() const override { return static_cast<uint8_t>(Kind::randomk); }
  size_t body_bytes(const Strip& strip) const override {
    return sizeof(uint64_t) + kept_of(rate_, strip.count()) * sizeof(float);
  }

  /// Calls take(i, index, size of its part).
  template <class Take>
  void each(uint64_t seed, size_t count, size_t kept, const Take& take) const {
    for (size_t i = 0; i < kept; i++) {
      const size_t begin = i * count / kept, size = (i + 1) * count / kept - begin;
      seed = mixed(seed);
      take(i, begin + static_cast<size_t>((static_cast<unsigned __int128>(seed) * size) >> 64), size);
    }
  }

  bool encode_body(const Strip& strip, const float* values, std::span<std::byte> body) override {
    const size_t count = strip.count(), kept = kept_of(rate_, count);
    if (!is_finite(kernels().most(values, count))) return false;
    values_.resize(kept);
    each(strip.seed, count, kept, [&](size_t i, size_t index, size_t size) {
      values_[i] = values[index] * (unbiased_ ? static_cast<float>(size) : 1.0f);
    });
    if (!is_finite(kernels().most(values_.data(), kept))) return false;
    std::memcpy(body.data(), &strip.seed, sizeof strip.seed);
    std::memcpy(body.data() + sizeof strip.seed, values_.data(), kept * sizeof(float));
    return true;
  }

  void add_body(const Strip& strip, std::span<const std::byte> body, float* into) override {
    const size_t count = strip.count(), kept = kept_of(rate_, count);
    uint64_t seed = 0;
    values_.resize(kept);
    std::memcpy(&seed, body.data(), sizeof seed);
    std::memcpy(values_.data(), body.data() + sizeof seed, kept * sizeof(float));
    check_finite("randomk", values_.data(), kept);
    each(seed, count, kept, [&](size_t i, size_t index, size_t) { into[index] += values_[i]; });
  }

  const double rate_;
  const bool unbiased_;
  std::vector<float> values_;
};

}  // namespace

std::unique_ptr<Codec> make_topk(double rate) { return std::make_unique<TopK>(rate); }
std::unique_ptr<Codec> make_randomk(double rate, bool unbiased) { return std::make_unique<RandomK>(rate, unbiased); }

}  // namespace trireme::compress
