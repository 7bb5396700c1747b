// label: unit
// All variants of the inner loops against plain arithmetic, and against each other bit by bit.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <limits>

#include <trireme/compress/kernels.h>

#include "gradients.h"

namespace trireme::compress::tests {
namespace {

constexpr size_t kCounts[] = {0, 1, 3, 15, 16, 17, 31, 33, 63, 65, 1000, 4099};

/// Every exponent, both signs, ties of both 16-bit formats, denormals and zeros.
Values odd_values(size_t count, uint64_t seed) {
  std::mt19937_64 random(seed);
  Values values(count);
  for (float& value : values) {
    auto bits = static_cast<uint32_t>(random());
    if (random() % 2 == 0) bits = (bits & 0xffff8000u) | (random() % 2 == 0 ? 0x8000u : 0x1000u);
    if (random() % 9 == 0) bits &= 0x80000000u;
    if ((bits & 0x7f800000u) == 0x7f800000u) bits &= 0xbfffffffu;
    std::memcpy(&value, &bits, sizeof value);
  }
  return values;
}

uint16_t half_bits(float value) { return __builtin_bit_cast(uint16_t, static_cast<_Float16>(value)); }
float half_value(uint16_t bits) { return static_cast<float>(__builtin_bit_cast(_Float16, bits)); }

TEST(CompressKernels, RoundToNearestSixteenBits) {
  for (const Kernels* k : runnable_kernels()) {
    const Values values = odd_values(100'000, 1);
    std::vector<uint16_t> half(values.size()), brain(values.size());
    k->to_half(values.data(), half.data(), values.size());
    k->to_brain(values.data(), brain.data(), values.size());
    for (size_t i = 0; i < values.size(); i++) {
      const float clamped = std::clamp(values[i], -65504.0f, 65504.0f);
      ASSERT_EQ(half[i], half_bits(clamped)) << k->name << ' ' << values[i];
      const float back = __builtin_bit_cast(float, static_cast<uint32_t>(brain[i]) << 16);
      ASSERT_TRUE(std::isfinite(back)) << values[i];
      ASSERT_LE(std::abs(static_cast<double>(back) - values[i]), std::abs(values[i]) * 0x1p-8 + 0x1p-134) << values[i];
    }
    Values into(1 << 16, 0);
    std::vector<uint16_t> all(1 << 16);
    for (size_t i = 0; i < all.size(); i++) all[i] = static_cast<uint16_t>(i);
    k->add_half(all.data(), into.data(), all.size());
    for (size_t i = 0; i < all.size(); i++)
      ASSERT_TRUE(into[i] == half_value(all[i]) || (std::isnan(into[i]) && std::isnan(half_value(all[i])))) << i;
  }
}

/// Everything that a variant computes, as bytes.
Bytes outputs_of(const Kernels& k, size_t count) {
  const Values a = gradient_of(count, 1), b = gradient_of(count, 2), odd = odd_values(count, 3);
  Bytes all;
  const auto put = [&](const auto& values) {
    const auto bytes = std::as_bytes(std::span(values));
    all.insert(all.end(), bytes.begin(), bytes.end());
  };
  const auto put_one = [&](auto value) { put(std::array{value}); };
  std::vector<uint16_t> half(count), brain(count);
  put_one(k.to_half(odd.data(), half.data(), count));
  put_one(k.to_brain(odd.data(), brain.data(), count));
  put(half), put(brain);
  Values into = b;
  k.add_half(half.data(), into.data(), count);
  k.add_brain(brain.data(), into.data(), count);
  put(into);
  put_one(k.most(odd.data(), count));
  std::vector<int8_t> bytes(count);
  std::array<uint32_t, kStreams> streams{};
  for (size_t i = 0; i < kStreams; i++) streams[i] = static_cast<uint32_t>(7 * i + 1);
  k.quantize(a.data(), bytes.data(), count, 900, streams.data());
  put(bytes), put(streams);
  k.add_scaled(bytes.data(), into.data(), count, 0.3f);
  put(into);
  put_one(k.sum_magnitudes(a.data(), count));
  std::vector<uint8_t> signs((count + 7) / 8);
  k.pack_signs(a.data(), signs.data(), count);
  put(signs);
  k.add_signs(signs.data(), into.data(), count, 0.7f);
  put(into);
  std::vector<uint32_t> found(count);
  found.resize(k.collect(a.data(), count, __builtin_bit_cast(uint32_t, 0.01f), found.data()));
  put(found);
  put_one(k.add(a.data(), b.data(), into.data(), count));
  put(into);
  put_one(k.keep(a.data(), b.data(), odd.data(), a.data(), into.data(), count));
  put(into);
  put_one(k.keep(b.data(), a.data(), b.data(), into.data(), into.data(), count));  // where it was
  put(into);
  for (const size_t rows : {size_t{1}, size_t{3}, size_t{8}}) {
    const size_t columns = count / rows;
    Values p(3 * rows), q = gradient_of(3 * columns, 4), product(rows * columns, 1);
    k.times(a.data(), rows, columns, q.data(), 3, p.data());
    put(p);
    k.transposed_times(a.data(), rows, columns, p.data(), 3, q.data());
    put(q);
    k.add_product(p.data(), q.data(), rows, columns, 3, product.data());
    put(product);
  }
  return all;
}

TEST(CompressKernels, AllVariantsGiveTheSameBits) {
  const auto all = runnable_kernels();
  for (const size_t count : kCounts)
    for (const Kernels* k : all) EXPECT_EQ(outputs_of(*k, count), outputs_of(*all.back(), count)) << k->name << count;
}

TEST(CompressKernels, ComputeWhatTheySay) {
  const Kernels& k = kernels();
  for (const size_t count : kCounts) {
    const Values values = gradient_of(count, count + 1);
    std::vector<uint8_t> signs((count + 7) / 8 + 1);
    k.pack_signs(values.data(), signs.data(), count);
    std::vector<uint32_t> found(count), expected;
    const float least = 0.005f;
    found.resize(k.collect(values.data(), count, __builtin_bit_cast(uint32_t, least), found.data()));
    Totals expected_totals;
    const Values sent = gradient_of(count, 5), before = gradient_of(count, 6);
    Values after(count);
    const Totals totals = k.keep(values.data(), before.data(), sent.data(), before.data(), after.data(), count);
    for (size_t i = 0; i < count; i++) {
      EXPECT_EQ((signs[i / 8] >> (i % 8)) & 1, std::signbit(values[i]) ? 1 : 0);
      if (std::abs(values[i]) >= least) expected.push_back(static_cast<uint32_t>(i));
      EXPECT_EQ(after[i], before[i] - sent[i]);
      expected_totals.given += static_cast<double>(values[i]);
      expected_totals.sent += static_cast<double>(sent[i]);
      expected_totals.kept += static_cast<double>(after[i]) - static_cast<double>(before[i]);
    }
    EXPECT_EQ(found, expected);
    EXPECT_NEAR(totals.given, expected_totals.given, 1e-9);
    EXPECT_NEAR(totals.sent, expected_totals.sent, 1e-9);
    EXPECT_NEAR(totals.kept, expected_totals.kept, 1e-9);
  }
  const float m[] = {1, 2, 3, 4, 5, 6}, q[] = {1, 0, -1};
  float p[2], back[3], product[6] = {};
  k.times(m, 2, 3, q, 1, p);
  EXPECT_EQ((std::vector<float>{p[0], p[1]}), (std::vector<float>{-2, -2}));
  k.transposed_times(m, 2, 3, p, 1, back);
  EXPECT_EQ((std::vector<float>{back[0], back[1], back[2]}), (std::vector<float>{-10, -14, -18}));
  k.add_product(p, back, 2, 3, 1, product);
  EXPECT_EQ(product[5], 36);
}

}  // namespace
}  // namespace trireme::compress::tests
