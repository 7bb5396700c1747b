// label: unit
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>

#include <trireme/space/kernels.h>

namespace trireme::space::tests {
namespace {

constexpr DType kTypes[] = {DType::f32, DType::f64, DType::f16, DType::bf16, DType::i32, DType::i64, DType::u8};
constexpr Op kOps[] = {Op::sum, Op::mean, Op::min, Op::max};
constexpr size_t kCounts[] = {0, 1, 3, 15, 17, 63, 1000, 1023, 1025, 4099};

using Bytes = std::vector<std::byte>;

template <class T>
void put(Bytes& bytes, size_t i, T value) {
  std::memcpy(bytes.data() + i * sizeof value, &value, sizeof value);
}

template <class T>
T get(const Bytes& bytes, size_t i) {
  T value;
  std::memcpy(&value, bytes.data() + i * sizeof value, sizeof value);
  return value;
}

uint16_t half_bits(float value) { return __builtin_bit_cast(uint16_t, static_cast<_Float16>(value)); }
float half_value(uint16_t bits) { return static_cast<float>(__builtin_bit_cast(_Float16, bits)); }
float brain_value(uint16_t bits) { return __builtin_bit_cast(float, static_cast<uint32_t>(bits) << 16); }

/// The nearer of the two neighbours in double arithmetic; at a tie, the even one.
uint16_t brain_bits(float value) {
  const uint32_t bits = __builtin_bit_cast(uint32_t, value);
  const auto down = static_cast<uint16_t>(bits >> 16), up = static_cast<uint16_t>(down + 1);
  const auto reach = [](uint16_t b) {
    return (b & 0x7fffu) == 0x7f80u ? std::copysign(0x1p128, brain_value(b)) : static_cast<double>(brain_value(b));
  };
  const double below = std::abs(static_cast<double>(value) - reach(down)),
               above = std::abs(reach(up) - static_cast<double>(value));
  return below < above || (below == above && down % 2 == 0) ? down : up;
}

Bytes random_data(DType type, size_t count, std::mt19937& random) {
  std::uniform_real_distribution<double> real(-4, 4);
  std::uniform_int_distribution<int> whole(-1000000, 1000000);
  Bytes bytes(count * size_of(type));
  for (size_t i = 0; i < count; i++) {
    const double x = real(random) * std::pow(2.0, whole(random) % 12);
    switch (type) {
      case DType::f32:
        put(bytes, i, static_cast<float>(x));
        break;
      case DType::f64:
        put(bytes, i, x);
        break;
      case DType::f16:
        put(bytes, i, half_bits(static_cast<float>(x)));
        break;
      case DType::bf16:
        put(bytes, i, brain_bits(static_cast<float>(x)));
        break;
      case DType::i32:
        put(bytes, i, int32_t{whole(random)});
        break;
      case DType::i64:
        put(bytes, i, int64_t{whole(random)} * 1000003);
        break;
      case DType::u8:
        put(bytes, i, static_cast<uint8_t>(whole(random) & 31));
        break;
    }
  }
  return bytes;
}

/// Zeros of both signs and infinities: where minimum instructions could differ from comparisons.
void add_specials(DType type, Bytes& bytes, int k) {
  const double specials[] = {
      0.0, -0.0, std::numeric_limits<double>::infinity(), std::numeric_limits<double>::quiet_NaN(), 5e-324, 1e-40};
  for (size_t i = 0; i < bytes.size() / size_of(type); i += 7) {
    const double x = specials[(i / 7 + static_cast<size_t>(k)) % std::size(specials)];
    if (type == DType::f32) put(bytes, i, static_cast<float>(x));
    if (type == DType::f64) put(bytes, i, x);
    if (type == DType::f16) put(bytes, i, half_bits(static_cast<float>(x)));
  }
}

Bytes reduce(const Kernels& kernels, DType type, Op op, const std::vector<Bytes>& sources, size_t count,
             bool in_place) {
  std::vector<Bytes> data = sources;
  Bytes out(count * size_of(type));
  std::vector<void*> outs = {out.data()};
  std::vector<const void*> from;
  for (Bytes& source : data) from.push_back(source.data());
  if (in_place) {
    outs.clear();
    for (Bytes& source : data) outs.push_back(source.data());
  }
  kernels.reduce(type, op, outs.data(), static_cast<int>(outs.size()), from.data(), static_cast<int>(from.size()),
                 count);
  if (!in_place) return out;
  for (const Bytes& source : data) EXPECT_EQ(source, data[0]) << "outputs differ";
  return data[0];
}

TEST(Kernels, PlainIsAlwaysThereAndLast) {
  const auto all = runnable_kernels();
  ASSERT_FALSE(all.empty());
  EXPECT_STREQ(all.back()->name, "plain");
  EXPECT_EQ(&kernels(), all.front());
}

TEST(Kernels, EveryVariantReducesToTheSameBits) {
  std::mt19937 random(1);
  const Kernels& plain = *runnable_kernels().back();
  for (DType type : kTypes)
    for (int n = 1; n <= 5; n++)
      for (size_t count : kCounts) {
        std::vector<Bytes> sources;
        for (int k = 0; k < n; k++) {
          sources.push_back(random_data(type, count, random));
          add_specials(type, sources.back(), k);
        }
        for (Op op : kOps) {
          const Bytes wanted = reduce(plain, type, op, sources, count, false);
          for (const Kernels* variant : runnable_kernels())
            for (bool in_place : {false, true})
              ASSERT_EQ(reduce(*variant, type, op, sources, count, in_place), wanted)
                  << fmt::format("{} {} {} of {} × {} {}", variant->name, name_of(op), name_of(type), n, count,
                                 in_place ? "in place" : "");
        }
      }
}

template <class T>
void check_reduce(DType type, Op op) {
  std::mt19937 random(2);
  for (int n = 1; n <= 5; n++) {
    std::vector<Bytes> sources;
    for (int k = 0; k < n; k++) sources.push_back(random_data(type, 1001, random));
    const Bytes result = reduce(kernels(), type, op, sources, 1001, false);
    for (size_t i = 0; i < 1001; i++) {
      T wanted = get<T>(sources[0], i);
      for (size_t k = 1; k < sources.size(); k++) {
        const T next = get<T>(sources[k], i);
        wanted = op == Op::min   ? std::min(wanted, next)
                 : op == Op::max ? std::max(wanted, next)
                                 : static_cast<T>(wanted + next);
      }
      if (op == Op::mean) wanted = static_cast<T>(wanted / static_cast<T>(n));
      ASSERT_EQ(get<T>(result, i), wanted) << name_of(type) << " " << name_of(op) << " of " << n;
    }
  }
}

TEST(Kernels, ReduceIsWhatItSays) {
  for (Op op : kOps) {
    check_reduce<float>(DType::f32, op);
    check_reduce<double>(DType::f64, op);
    check_reduce<int32_t>(DType::i32, op);
    check_reduce<int64_t>(DType::i64, op);
    check_reduce<uint8_t>(DType::u8, op);
  }
}

TEST(Kernels, AccumulateAdds) {
  for (const Kernels* variant : runnable_kernels()) {
    std::vector<double> into = {1, 2, 3}, from = {10, 20, 30};
    variant->accumulate(DType::f64, into.data(), from.data(), 3);
    EXPECT_EQ(into, (std::vector<double>{11, 22, 33}));
  }
}

// ---- 16-bit floats, seen through the reduction ----

// The sum of one source loads x and stores what it loaded: all bit patterns must survive.
TEST(Halves, EveryValueSurvivesLoadAndStore) {
  for (const Kernels* variant : runnable_kernels())
    for (DType type : {DType::f16, DType::bf16}) {
      Bytes all(65536 * 2);
      for (size_t i = 0; i < 65536; i++) put(all, i, static_cast<uint16_t>(i));
      const Bytes result = reduce(*variant, type, Op::sum, {all}, 65536, false);
      for (size_t i = 0; i < 65536; i++) {
        const auto bits = static_cast<uint16_t>(i), got = get<uint16_t>(result, i);
        const float value = type == DType::f16 ? half_value(bits) : brain_value(bits);
        if (std::isnan(value))
          ASSERT_TRUE(std::isnan(type == DType::f16 ? half_value(got) : brain_value(got))) << i;
        else
          ASSERT_EQ(got, bits) << variant->name << " " << name_of(type);
      }
    }
}

// x + y of two halves is exact in float, or rounded there once: then the store rounds to the half.
template <class Value, class Bits>
void check_sums(DType type, const Kernels& variant, const Value& value, const Bits& bits_of) {
  constexpr uint16_t kOthers[] = {0x0000, 0x8000, 0x0001, 0x8001, 0x03ff, 0x0400, 0x3c00, 0xbc01, 0x1000,
                                  0x7bff, 0xfbff, 0x5555, 0x3f80, 0x7f7f, 0x4780, 0x2e66, 0x0080};
  for (uint16_t other : kOthers) {
    Bytes all(65536 * 2), others(65536 * 2);
    for (size_t i = 0; i < 65536; i++) put(all, i, static_cast<uint16_t>(i)), put(others, i, other);
    const Bytes result = reduce(variant, type, Op::sum, {all, others}, 65536, false);
    for (size_t i = 0; i < 65536; i++) {
      const float wanted = value(static_cast<uint16_t>(i)) + value(other);
      const auto got = get<uint16_t>(result, i);
      if (std::isnan(wanted))
        ASSERT_TRUE(std::isnan(value(got)));
      else
        ASSERT_EQ(got, bits_of(wanted)) << fmt::format("{} {}: {:#06x} + {:#06x} = {}", variant.name, name_of(type), i,
                                                       other, wanted);
    }
  }
}

TEST(Halves, SumsAreRoundedToNearestEven) {
  for (const Kernels* variant : runnable_kernels()) {
    check_sums(DType::f16, *variant, half_value, half_bits);
    check_sums(DType::bf16, *variant, brain_value, [](float x) {
      return std::isinf(x) ? static_cast<uint16_t>(__builtin_bit_cast(uint32_t, x) >> 16) : brain_bits(x);
    });
  }
}

// Means divide in float, so that ties and subnormals come from everywhere.
TEST(Halves, MeansRoundOnce) {
  for (const Kernels* variant : runnable_kernels())
    for (int n : {2, 3}) {
      std::vector<Bytes> sources(static_cast<size_t>(n), Bytes(65536 * 2));
      for (size_t i = 0; i < 65536; i++)
        for (size_t k = 0; k < sources.size(); k++)
          put(sources[k], i, static_cast<uint16_t>(k == 0 ? i : (i * 40503 + k * 977) & 0xffff));
      const Bytes result = reduce(*variant, DType::f16, Op::mean, sources, 65536, false);
      for (size_t i = 0; i < 65536; i++) {
        float sum = half_value(get<uint16_t>(sources[0], i));
        for (size_t k = 1; k < sources.size(); k++) sum += half_value(get<uint16_t>(sources[k], i));
        const float wanted = sum / static_cast<float>(n);
        const auto got = get<uint16_t>(result, i);
        if (std::isnan(wanted))
          ASSERT_TRUE(std::isnan(half_value(got)));
        else
          ASSERT_EQ(got, half_bits(wanted)) << variant->name << " " << wanted;
      }
    }
}

TEST(Halves, KnownPoints) {
  EXPECT_EQ(half_value(0x3c00), 1.0f);  // the reference itself
  EXPECT_EQ(half_bits(65519.0f), 0x7bff);
  const auto sum = [](DType type, uint16_t a, uint16_t b) {
    uint16_t out = 0;
    void* const outs[] = {&out};
    const void* const from[] = {&a, &b};
    kernels().reduce(type, Op::sum, outs, 1, from, 2, 1);
    return out;
  };
  EXPECT_EQ(sum(DType::f16, 0x7bff, 0x7bff), 0x7c00);   // 65504 + 65504: infinite
  EXPECT_EQ(sum(DType::f16, 0x7bff, 0x4b80), 0x7bff);   // 65504 + 15 stays
  EXPECT_EQ(sum(DType::f16, 0x7bff, 0x4c00), 0x7c00);   // 65504 + 16: the tie goes to the even one, infinity
  EXPECT_EQ(sum(DType::f16, 0x0001, 0x0001), 0x0002);   // subnormals
  EXPECT_EQ(sum(DType::f16, 0x03ff, 0x0001), 0x0400);   // to the first normal
  EXPECT_EQ(sum(DType::bf16, 0x3f80, 0x3b80), 0x3f80);  // 1 + 2⁻⁸: a tie, to even
  EXPECT_EQ(sum(DType::bf16, 0x3f81, 0x3b80), 0x3f82);  // 1 + 2⁻⁷ + 2⁻⁸: a tie, to even
  EXPECT_EQ(sum(DType::bf16, 0x7f7f, 0x7f7f), 0x7f80);  // infinite
}

// ---- update ----

TEST(Kernels, EveryVariantUpdatesToTheSameBits) {
  std::mt19937 random(3);
  const Kernels& plain = *runnable_kernels().back();
  for (Optimizer kind : {Optimizer::sgd, Optimizer::momentum, Optimizer::adagrad, Optimizer::adam, Optimizer::adamw})
    for (DType type : {DType::f32, DType::f64})
      for (bool nesterov : {false, true})
        for (int n = 1; n <= 5; n++)
          for (size_t count : kCounts) {
            std::vector<Bytes> gradients;
            std::vector<const void*> from;
            for (int k = 0; k < n; k++) gradients.push_back(random_data(type, count, random));
            for (const Bytes& gradient : gradients) from.push_back(gradient.data());
            const Bytes start = random_data(type, count, random), first = random_data(type, count, random);
            Bytes second(count * size_of(type));  // Adam's second moment is not negative
            for (size_t i = 0; i < count; i++)
              type == DType::f32 ? put(second, i, static_cast<float>(i % 17) / 7)
                                 : put(second, i, static_cast<double>(i % 17) / 7);
            /// The parameters begin `shift` elements after the beginning of a cache line.
            const auto run = [&](const Kernels& variant, bool stream, size_t shift, double scale, bool watch) {
              Bytes p(start.size() + 256, std::byte{0x5a}), s = kind == Optimizer::adagrad ? second : first, v = second;
              std::byte* parameters = p.data() + (-reinterpret_cast<uintptr_t>(p.data()) % 64 + shift * size_of(type));
              std::copy(start.begin(), start.end(), parameters);
              const bool fine = variant.update({.optimizer = kind,
                                                .dtype = type,
                                                .gradients = from.data(),
                                                .sources = n,
                                                .count = count,
                                                .parameters = parameters,
                                                .state = {kind == Optimizer::sgd ? nullptr : s.data(), v.data()},
                                                .lr = 0.013,
                                                .momentum = 0.9,
                                                .beta1 = 0.9,
                                                .beta2 = 0.999,
                                                .epsilon = 1e-8,
                                                .weight_decay = 0.01,
                                                .nesterov = nesterov,
                                                .stream = stream,
                                                .correction1 = 0.271,
                                                .correction2 = 0.003,
                                                .scale = scale,
                                                .watch = watch});
              EXPECT_TRUE(fine);
              EXPECT_TRUE(std::all_of(p.data(), parameters, [](std::byte b) { return b == std::byte{0x5a}; }));
              EXPECT_TRUE(std::all_of(parameters + start.size(), p.data() + p.size(),
                                      [](std::byte b) { return b == std::byte{0x5a}; }));
              s.insert(s.end(), v.begin(), v.end());
              s.insert(s.end(), parameters, parameters + start.size());
              return s;
            };
            const Bytes wanted = run(plain, false, 0, 1, false), scaled = run(plain, false, 0, 0.3, false);
            for (const Kernels* variant : runnable_kernels())
              for (bool stream : {false, true})
                for (size_t shift : {0, 3}) {
                  const auto where = fmt::format("{} optimizer {}{}", variant->name, static_cast<int>(kind),
                                                 stream ? ", streaming" : "");
                  ASSERT_EQ(run(*variant, stream, shift, 1, false), wanted) << where;
                  ASSERT_EQ(run(*variant, stream, shift, 1, true), wanted) << where << ", watched";
                  ASSERT_EQ(run(*variant, stream, shift, 0.3, shift == 3), scaled) << where << ", scaled";
                }
          }
}

// ---- norms and checks ----

/// What a test puts in the place of a number.
const double kWrong[] = {std::numeric_limits<double>::quiet_NaN(), std::numeric_limits<double>::infinity(),
                         -std::numeric_limits<double>::infinity()};

template <class T>
void expect_watch(DType type, const Kernels& variant, int sources, double scale, double wrong) {
  const size_t count = 3 * kBlock + 77, bad = kBlock + 500;  // in the second block
  std::vector<std::vector<T>> gradients(static_cast<size_t>(sources), std::vector<T>(count, T{2}));
  gradients.back()[bad] = static_cast<T>(wrong);
  std::vector<const void*> from;
  for (const auto& gradient : gradients) from.push_back(gradient.data());
  std::vector<T> parameters(count, T{1}), state(count, T{0});
  EXPECT_FALSE(variant.update({.optimizer = Optimizer::momentum,
                               .dtype = type,
                               .gradients = from.data(),
                               .sources = sources,
                               .count = count,
                               .parameters = parameters.data(),
                               .state = {state.data(), nullptr},
                               .lr = 0.5,
                               .momentum = 0.5,
                               .scale = scale,
                               .watch = true}));
  const T moved = static_cast<T>(1 - 0.5 * 2 * sources * scale);
  for (size_t i = 0; i < count; i++) {
    const bool left = i / kBlock == bad / kBlock;
    ASSERT_EQ(parameters[i], left ? T{1} : moved) << variant.name << " " << i;
    ASSERT_EQ(state[i], left ? T{0} : static_cast<T>(2 * sources * scale)) << variant.name << " " << i;
  }
}

TEST(Kernels, AWatchedUpdateLeavesBlocksWithNanAsTheyAre) {
  for (const Kernels* variant : runnable_kernels())
    for (int sources : {1, 2, 3})
      for (double scale : {1.0, 0.25})
        for (double wrong : kWrong) {
          expect_watch<float>(DType::f32, *variant, sources, scale, wrong);
          expect_watch<double>(DType::f64, *variant, sources, scale, wrong);
        }
}

template <class T>
void expect_finite(DType type, const Kernels& variant) {
  for (size_t count : kCounts) {
    std::vector<T> values(count, std::numeric_limits<T>::max());
    if (count > 0) values[0] = std::numeric_limits<T>::lowest();
    ASSERT_TRUE(variant.finite(type, values.data(), count)) << variant.name << " " << count;
    for (size_t at : {size_t{0}, count / 2, count - 1})
      for (double wrong : kWrong) {
        if (at >= count) continue;
        const T before = std::exchange(values[at], static_cast<T>(wrong));
        ASSERT_FALSE(variant.finite(type, values.data(), count)) << variant.name << " " << count << " " << at;
        values[at] = before;
      }
  }
}

TEST(Kernels, FiniteFindsNanAndInfinityAnywhere) {
  for (const Kernels* variant : runnable_kernels()) {
    expect_finite<float>(DType::f32, *variant);
    expect_finite<double>(DType::f64, *variant);
  }
}

template <class T>
void expect_squares(DType type, const Kernels& variant, std::mt19937& random) {
  const Kernels& plain = *runnable_kernels().back();
  std::normal_distribution<double> normal;
  for (size_t count : kCounts)
    for (size_t n : {1, 2, 5}) {
      std::vector<std::vector<T>> data(n, std::vector<T>(count));
      std::vector<const void*> from;
      for (auto& values : data) {
        for (T& value : values) value = static_cast<T>(normal(random));
        from.push_back(values.data());
      }
      std::vector<T> sums(count);
      long double wanted = 0;
      for (size_t i = 0; i < count; i++) {
        for (const auto& values : data) sums[i] += values[i];
        wanted += static_cast<long double>(sums[i]) * sums[i];
      }
      const double without = variant.sum_squares(type, nullptr, from.data(), nullptr, static_cast<int>(n), count);
      ASSERT_NEAR(without, static_cast<double>(wanted), 1e-13 * (1 + static_cast<double>(wanted)))
          << variant.name << " " << count;
      ASSERT_EQ(without, plain.sum_squares(type, nullptr, from.data(), nullptr, static_cast<int>(n), count))
          << variant.name << " " << count;
      ASSERT_EQ(without, variant.sum_squares(type, data[0].data(), from.data(), nullptr, static_cast<int>(n), count))
          << variant.name << " " << count;
      ASSERT_EQ(data[0], sums) << variant.name << " " << count;
      variant.scale(type, sums.data(), 0.25, count);
      for (size_t i = 0; i < count; i++) ASSERT_EQ(sums[i], data[0][i] / 4);
    }
}

TEST(Kernels, SquaresAreThoseOfTheSumInEveryVariant) {
  std::mt19937 random(4);
  for (const Kernels* variant : runnable_kernels()) {
    expect_squares<float>(DType::f32, *variant, random);
    expect_squares<double>(DType::f64, *variant, random);
  }
}

/// A tree over n sources: how many sums are formed after each.
std::vector<uint8_t> random_tree(size_t n, std::mt19937& random) {
  std::vector<uint8_t> adds(n);
  size_t standing = 0;
  for (size_t k = 0; k < n; k++) {
    standing++;
    adds[k] = static_cast<uint8_t>(k + 1 == n ? standing - 1 : standing < kMostStanding ? random() % standing : 1);
    standing -= adds[k];
  }
  return adds;
}

template <class T>
T sum_in_tree(const std::vector<std::vector<T>>& data, const std::vector<uint8_t>& adds, size_t i) {
  std::vector<T> standing;
  for (size_t k = 0; k < data.size(); k++) {
    standing.push_back(data[k][i]);
    for (int left = adds[k]; left > 0; left--) {
      const T last = standing.back();
      standing.pop_back();
      standing.back() += last;
    }
  }
  return standing.at(0);
}

template <class T>
void expect_trees(DType type, const Kernels& variant, std::mt19937& random) {
  std::normal_distribution<double> normal;
  for (size_t n = 1; n <= 14; n++)
    for (int turn = 0; turn < 6; turn++) {
      const size_t count = 1 + random() % 2500;
      std::vector<uint8_t> adds = n == 4 && turn == 0 ? std::vector<uint8_t>{0, 1, 0, 2} : random_tree(n, random);
      std::vector<std::vector<T>> data(n, std::vector<T>(count));
      std::vector<const void*> from;
      for (auto& values : data) {
        for (T& value : values) value = static_cast<T>(normal(random));
        from.push_back(values.data());
      }
      std::vector<T> wanted(count), sums(count), squared(count), parameters(count);
      for (size_t i = 0; i < count; i++) wanted[i] = sum_in_tree(data, adds, i);
      variant.sum_tree(type, sums.data(), from.data(), adds.data(), static_cast<int>(n), count);
      ASSERT_EQ(sums, wanted) << variant.name << ", " << n << " sources";
      if (n > 1) {
        variant.sum_squares(type, squared.data(), from.data(), adds.data(), static_cast<int>(n), count);
        ASSERT_EQ(squared, wanted) << variant.name << ", " << n << " sources";
      }
      variant.update({.dtype = type,
                      .gradients = from.data(),
                      .sources = static_cast<int>(n),
                      .adds = adds.data(),
                      .count = count,
                      .parameters = parameters.data(),
                      .lr = 1});
      for (size_t i = 0; i < count; i++)
        ASSERT_EQ(parameters[i], -wanted[i]) << variant.name << ", " << n << " sources";
      variant.sum_tree(type, data[n / 2].data(), from.data(), adds.data(), static_cast<int>(n), count);  // in place
      ASSERT_EQ(data[n / 2], wanted) << variant.name << ", " << n << " sources";
    }
}

TEST(Kernels, SumsFollowATreeInEveryVariant) {
  for (const Kernels* variant : runnable_kernels()) {
    std::mt19937 random(11);
    expect_trees<float>(DType::f32, *variant, random);
    expect_trees<double>(DType::f64, *variant, random);
  }
}

TEST(Kernels, SumsThatAreNotFiniteAreNotWritten) {
  for (const Kernels* variant : runnable_kernels())
    for (double wrong : kWrong) {
      std::vector<double> first(3 * kBlock, 1.0), second(3 * kBlock, 2.0);
      second[2 * kBlock] = wrong;
      const void* const from[] = {first.data(), second.data()};
      EXPECT_FALSE(std::isfinite(variant->sum_squares(DType::f64, first.data(), from, nullptr, 2, first.size())));
      EXPECT_EQ(first[2 * kBlock - 1], 3);
      for (size_t i = 2 * kBlock; i < first.size(); i++)
        ASSERT_EQ(first[i], 1) << "the gradient that is fine can be told from the other";
    }
}

}  // namespace
}  // namespace trireme::space::tests
