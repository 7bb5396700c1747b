// M ≈ P Qᵀ with a few columns in each: P = M Q with the Q of the step before, orthonormal columns for P, Q = Mᵀ P.
// (Vogels et al., 2019.) Each sender has factors of its own, and who decodes adds their products: nothing is lost by
// summing factors, and with two senders no more bytes travel.
#include <cmath>
#include <cstring>
#include <map>
#include <vector>

#include <trireme/compress/codecs.h>
#include <trireme/compress/kernels.h>

namespace trireme::compress {
namespace {

constexpr double kZero = 1e-8;  // a column that the others span up to this part is none

double length_of(const float* column, size_t count) {
  double squares = 0;
  for (size_t i = 0; i < count; i++) squares += static_cast<double>(column[i]) * static_cast<double>(column[i]);
  return std::sqrt(squares);
}

/// Gram and Schmidt, each column twice: the second time takes away what rounding has left. A column without anything of
/// its own becomes zeros.
void orthonormalize(float* columns, size_t count, int rank) {
  for (int k = 0; k < rank; k++) {
    float* const own = columns + static_cast<size_t>(k) * count;
    const double before = length_of(own, count);
    for (int pass = 0; pass < 2; pass++)
      for (int other = 0; other < k; other++) {
        const float* const base = columns + static_cast<size_t>(other) * count;
        double along = 0;
        for (size_t i = 0; i < count; i++) along += static_cast<double>(own[i]) * static_cast<double>(base[i]);
        for (size_t i = 0; i < count; i++) own[i] -= static_cast<float>(along * base[i]);
      }
    const double length = length_of(own, count);
    const bool none = !(length > kZero * before) || length == 0;
    for (size_t i = 0; i < count; i++) own[i] = none ? 0 : static_cast<float>(own[i] / length);
  }
}

class PowerSgd final : public Codec {
 public:
  explicit PowerSgd(int rank) : rank_(rank) {}

 private:
  uint8_t kind() const override { return static_cast<uint8_t>(Kind::powersgd); }
  size_t factors(const Strip& strip) const { return (strip.rows + strip.columns) * static_cast<size_t>(rank_); }
  /// Half of the elements at most; otherwise they travel as they are.
  bool pays(const Strip& strip) const { return 2 * factors(strip) < strip.count(); }
  size_t body_bytes(const Strip& strip) const override {
    return (pays(strip) ? factors(strip) : strip.count()) * sizeof(float);
  }

  bool encode_body(const Strip& strip, const float* m, std::span<std::byte> body) override {
    if (!pays(strip)) {
      std::memcpy(body.data(), m, body.size());
      return is_finite(kernels().most(m, strip.count()));
    }
    const size_t rows = strip.rows, columns = strip.columns;
    const auto [known, fresh] = last_.try_emplace(strip.place);
    std::vector<float>& q = known->second;
    if (fresh || q.size() != columns * static_cast<size_t>(rank_)) begin(strip, q);
    fresh_.assign(q.begin(), q.end());
    orthonormalize(fresh_.data(), columns, rank_);
    revive(strip);
    factors_.resize(factors(strip));
    float *const p = factors_.data(), *const new_q = p + rows * static_cast<size_t>(rank_);
    kernels().times(m, rows, columns, fresh_.data(), rank_, p);
    if (!is_finite(kernels().most(p, rows * static_cast<size_t>(rank_)))) return false;
    orthonormalize(p, rows, rank_);
    kernels().transposed_times(m, rows, columns, p, rank_, new_q);
    if (!is_finite(kernels().most(new_q, q.size()))) return false;
    q.assign(new_q, new_q + q.size());
    std::memcpy(body.data(), factors_.data(), body.size());
    return true;
  }

  /// From the place alone.
  void begin(const Strip& strip, std::vector<float>& q) const {
    uint64_t seed = strip.place + 1;
    q.resize(strip.columns * static_cast<size_t>(rank_));
    for (float& one : q) {
      seed = mixed(seed);
      one = static_cast<float>(static_cast<double>(seed >> 11) * 0x1p-52 - 1);
    }
  }

  /// A column that has become zeros, as after a gradient of zeros, would stay so for ever.
  void revive(const Strip& strip) {
    std::vector<float> anew;
    for (int k = 0; k < rank_; k++) {
      float* const column = fresh_.data() + static_cast<size_t>(k) * strip.columns;
      if (length_of(column, strip.columns) > 0) continue;
      if (anew.empty()) begin(strip, anew);
      std::memcpy(column, anew.data() + static_cast<size_t>(k) * strip.columns, strip.columns * sizeof(float));
      orthonormalize(fresh_.data(), strip.columns, k + 1);
    }
  }

  void add_body(const Strip& strip, std::span<const std::byte> body, float* into) override {
    factors_.resize(body.size() / sizeof(float));
    std::memcpy(factors_.data(), body.data(), body.size());
    check_finite("powersgd", factors_.data(), factors_.size());
    if (!pays(strip)) {
      for (size_t i = 0; i < factors_.size(); i++) into[i] += factors_[i];
      return;
    }
    kernels().add_product(factors_.data(), factors_.data() + strip.rows * static_cast<size_t>(rank_), strip.rows,
                          strip.columns, rank_, into);
  }

  const int rank_;
  std::map<size_t, std::vector<float>> last_;  // Q by place
  std::vector<float> fresh_, factors_;
};

}  // namespace

std::unique_ptr<Codec> make_powersgd(int rank) { return std::make_unique<PowerSgd>(rank); }

}  // namespace trireme::compress
