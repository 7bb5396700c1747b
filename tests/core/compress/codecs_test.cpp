// label: unit
// What each codec promises, over seeded gradients of sizes that divide nothing.
#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <limits>
#include <set>

#include <trireme/compress/codecs.h>
#include <trireme/compress/kernels.h>

#include "gradients.h"

namespace trireme::compress::tests {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity(), kNan = std::numeric_limits<float>::quiet_NaN();

class EachCodec : public testing::TestWithParam<std::string> {};
INSTANTIATE_TEST_SUITE_P(Codecs, EachCodec, testing::ValuesIn(kCodecs), [](const auto& info) {
  std::string name = info.param;
  std::replace_if(
      name.begin(), name.end(), [](char c) { return std::isalnum(static_cast<unsigned char>(c)) == 0; }, '_');
  return name;
});

TEST_P(EachCodec, GivesTheSameBytesForTheSameSeed) {
  for (const size_t count : kSizes) {
    const Values values = gradient_of(count, count);
    const auto one = codec_of(GetParam()), other = codec_of(GetParam());
    EXPECT_EQ(encoded(*one, strip_of(count), values), encoded(*other, strip_of(count), values)) << count;
  }
}

/// What was there stays, and what a message says is added.
TEST_P(EachCodec, AddsToWhatIsThere) {
  const size_t count = 777;
  const auto codec = codec_of(GetParam());
  const Strip strip = strip_of(count);
  const Bytes message = encoded(*codec, strip, gradient_of(count, 5));
  const Values once = decoded(*codec, strip, message);
  Values twice(count, 1);
  codec->add(strip, message, twice.data());
  for (size_t i = 0; i < count; i++) EXPECT_FLOAT_EQ(twice[i], once[i] + 1);
}

TEST_P(EachCodec, SendsZerosAsZeros) {
  for (const size_t count : kSizes) {
    const auto codec = codec_of(GetParam());
    const Values zeros(count, 0);
    EXPECT_EQ(decoded(*codec, strip_of(count), encoded(*codec, strip_of(count), zeros)), zeros) << count;
    Bytes nothing(codec->bytes(strip_of(count)));
    codec->encode_nothing(strip_of(count), nothing);
    EXPECT_EQ(decoded(*codec, strip_of(count), nothing), zeros);
  }
}

/// Nothing too small to be a normal number comes back larger than it was, or as no number.
TEST_P(EachCodec, KeepsDenormalsHarmless) {
  for (const size_t count : kSizes) {
    Values values(count);
    for (size_t i = 0; i < count; i++) values[i] = (i % 2 == 0 ? 1.0f : -1.0f) * 1e-41f * static_cast<float>(i % 7);
    const auto codec = codec_of(GetParam());
    for (const float value : decoded(*codec, strip_of(count), encoded(*codec, strip_of(count), values)))
      EXPECT_LT(std::abs(value), 1e-38f);
  }
}

TEST_P(EachCodec, TellsWhatIsNotFinite) {
  for (const float bad : {kNan, kInfinity, -kInfinity})
    for (const size_t count : kSizes)
      for (const size_t at : {size_t{0}, count / 2, count - 1}) {
        Values values = gradient_of(count, 3);
        values[at] = bad;
        const auto codec = codec_of(GetParam());
        const Strip strip = strip_of(count);
        Bytes message(codec->bytes(strip));
        EXPECT_FALSE(codec->encode(strip, values.data(), message));
        for (const float value : decoded(*codec, strip, message)) EXPECT_TRUE(std::isnan(value));
        EXPECT_TRUE(codec->encode(strip, gradient_of(count, 4).data(), message)) << "it must go on afterwards";
      }
}

/// Very large numbers do not become infinite.
TEST_P(EachCodec, StaysFinite) {
  for (const size_t count : kSizes) {
    Values values = gradient_of(count, 7);
    for (size_t i = 0; i < count; i += 3) values[i] = i % 2 == 0 ? 3e38f : -3e38f;
    const auto codec = codec_of(GetParam());
    const Strip strip = strip_of(count);
    Bytes message(codec->bytes(strip));
    if (!codec->encode(strip, values.data(), message)) continue;  // sums of them may be too large: it says so
    for (const float value : decoded(*codec, strip, message)) EXPECT_TRUE(std::isfinite(value)) << count;
  }
}

/// What was decoded is encoded as itself: by int8 up to a step of its scale, as the largest may have been rounded.
TEST_P(EachCodec, IsIdempotent) {
  const std::string name = GetParam();
  if (name.starts_with("randomk") || name.starts_with("sketch") || name.starts_with("powersgd")) return;
  for (const size_t count : kSizes) {
    const auto codec = codec_of(name);
    const Strip strip = strip_of(count);
    const Values once = decoded(*codec, strip, encoded(*codec, strip, gradient_of(count, count)));
    const Values twice = decoded(*codec, strip, encoded(*codec, strip, once));
    float most = 0;
    for (const float value : once) most = std::max(most, std::abs(value));
    for (size_t i = 0; i < count; i++)
      EXPECT_NEAR(once[i], twice[i], name == "int8" ? most / 126 : name == "sign" ? most * 1e-6 : 0) << name << i;
  }
}

/// What is left is smaller than what there was: without that, error feedback would not converge.
TEST_P(EachCodec, LeavesLessThanThereWas) {
  for (const size_t count : {size_t{257}, size_t{5000}, size_t{40000}})
    for (uint64_t seed = 0; seed < 5; seed++) {
      const auto codec = codec_of(GetParam(), true);
      const Strip strip = strip_of(count, seed + 1);
      const Values values = gradient_of(count, seed);
      const Values left = difference(values, decoded(*codec, strip, encoded(*codec, strip, values)));
      EXPECT_LT(squares(left), squares(values) * (1 + 1e-9)) << count;
    }
}

/// Σ given = Σ sent + residual, element by element, and what is left stays bounded while the gradient stays the same.
TEST_P(EachCodec, ConservesWithFeedback) {
  for (const size_t count : {size_t{257}, size_t{5000}}) {
    const size_t place = 4096;
    ErrorFeedback feedback(codec_of(GetParam(), true), place + count * sizeof(float));
    std::vector<double> given(count), sent(count);
    double largest_sum = 0;
    for (uint64_t step = 0; step < 40; step++) {
      const Strip strip = strip_of(count, step + 1, place);
      const Values values = gradient_of(count, step);
      const Values arrived = decoded(feedback, strip, encoded(feedback, strip, values));
      for (size_t i = 0; i < count; i++) {
        given[i] += static_cast<double>(values[i]);
        sent[i] += static_cast<double>(arrived[i]);
        largest_sum = std::max(largest_sum, std::abs(given[i]));
      }
    }
    const std::span<float> left = feedback.residual(strip_of(count, 1, place));
    double sum = 0;
    for (size_t i = 0; i < count; i++) {
      EXPECT_NEAR(given[i], sent[i] + static_cast<double>(left[i]), 1e-5 * (1 + largest_sum)) << i;
      sum += given[i];
    }
    const ErrorFeedback::Balance& balance = feedback.balance();
    EXPECT_NEAR(balance.given, sum, 1e-9 * count);
    EXPECT_NEAR(balance.error(), 0, 1e-6 * static_cast<double>(count));
  }
}

/// A step that is taken back leaves what is remembered as it was, and a gradient that is not finite does in any case.
TEST_P(EachCodec, TakesStepsBack) {
  const size_t count = 1000;
  ErrorFeedback feedback(codec_of(GetParam(), true), count * sizeof(float), true);
  const auto step = [&](uint64_t seed, bool applied) {
    encoded(feedback, strip_of(count, seed), gradient_of(count, seed));
    feedback.settle(applied);
    const std::span<float> left = feedback.residual(strip_of(count));
    return Values(left.begin(), left.end());
  };
  const Values after = step(1, true);
  const double given = feedback.balance().given;
  EXPECT_EQ(step(2, false), after);
  EXPECT_EQ(feedback.balance().given, given);
  Values bad = gradient_of(count, 3);
  bad[9] = kNan;
  encoded(feedback, strip_of(count), bad);
  feedback.settle(true);
  const std::span<float> left = feedback.residual(strip_of(count));
  EXPECT_EQ(Values(left.begin(), left.end()), after);
  feedback.keep(strip_of(count));
  feedback.settle(true);
  const std::span<float> kept = feedback.residual(strip_of(count));
  EXPECT_EQ(Values(kept.begin(), kept.end()), after);
}

/// The mean of many messages is what was sent: by chance, so within five deviations of the mean.
TEST(Unbiased, Int8AndRandomK) {
  constexpr int kTimes = 4000;
  constexpr size_t kCount = 37;
  const Values values = gradient_of(kCount, 1);
  for (const char* const name : {"int8", "randomk:0.2"}) {
    const auto codec = codec_of(name);
    std::vector<double> sums(kCount), sums_of_squares(kCount);
    for (int i = 0; i < kTimes; i++) {
      const Strip strip = strip_of(kCount, static_cast<uint64_t>(i) + 1);
      const Values arrived = decoded(*codec, strip, encoded(*codec, strip, values));
      for (size_t at = 0; at < kCount; at++) {
        sums[at] += static_cast<double>(arrived[at]);
        sums_of_squares[at] += static_cast<double>(arrived[at]) * static_cast<double>(arrived[at]);
      }
    }
    for (size_t at = 0; at < kCount; at++) {
      const double mean = sums[at] / kTimes, variance = sums_of_squares[at] / kTimes - mean * mean;
      EXPECT_NEAR(mean, static_cast<double>(values[at]), 5 * std::sqrt(variance / kTimes) + 1e-6) << name << ' ' << at;
    }
  }
}

TEST(Bounds, OfWhatIsRounded) {
  for (const size_t count : kSizes) {
    const Values values = gradient_of(count, count);
    const auto error_of = [&](const char* name, const auto& bound) {
      const auto codec = codec_of(name);
      const Values arrived = decoded(*codec, strip_of(count), encoded(*codec, strip_of(count), values));
      for (size_t i = 0; i < count; i++) {
        const auto [begin, end] = std::pair(i / 256 * 256, std::min(count, i / 256 * 256 + 256));
        float most = 0;
        for (size_t k = begin; k < end; k++) most = std::max(most, std::abs(values[k]));
        EXPECT_LE(std::abs(arrived[i] - values[i]), bound(std::abs(values[i]), most)) << name << ' ' << i;
      }
    };
    error_of("fp16", [](float value, float) { return value * 0x1p-11f + 0x1p-25f; });
    error_of("bf16", [](float value, float) { return value * 0x1p-8f; });
    error_of("int8", [](float, float most) { return most / 127 * 1.0001f; });
  }
}

TEST(TopK, KeepsExactlyTheLargest) {
  for (const size_t count : {size_t{1}, size_t{50}, size_t{5000}, size_t{100000}})
    for (const double rate : {0.00001, 0.01, 0.5, 1.0})
      for (const bool same : {false, true}) {
        const auto codec = make_codec({.kind = Kind::topk, .rate = rate}, true);
        Values values = same ? Values(count, 0.5f) : gradient_of(count, count);
        const Values arrived = decoded(*codec, strip_of(count), encoded(*codec, strip_of(count), values));
        const size_t kept = std::max<size_t>(1, static_cast<size_t>(std::llround(rate * static_cast<double>(count))));
        size_t sent = 0;
        float least_sent = kInfinity, most_left = 0;
        for (size_t i = 0; i < count; i++) {
          const bool here = arrived[i] != 0;
          EXPECT_EQ(arrived[i], here ? values[i] : 0);
          float& edge = here ? least_sent : most_left;
          edge = here ? std::min(edge, std::abs(values[i])) : std::max(edge, std::abs(values[i]));
          sent += here ? 1 : 0;
        }
        EXPECT_EQ(sent, kept) << count << ' ' << rate;
        EXPECT_GE(least_sent, most_left);
      }
}

/// Values that a sample cannot guess: a spike that it misses, and one that it is full of.
TEST(TopK, KeepsExactlyThatManyWhereASampleMisleads) {
  const size_t count = 100000;
  const auto codec = codec_of("topk:0.1");
  Values spike(count, 0), strided(count, 0);
  for (size_t i = 0; i < 500; i++) spike[31 + i] = static_cast<float>(i + 1);
  for (size_t i = 0; i < 4096; i++) strided[i * count / 4096] = 1 + static_cast<float>(i);
  for (const Values& values : {spike, strided})
    EXPECT_EQ(decoded(*codec, strip_of(count), encoded(*codec, strip_of(count), values)), values);
}

/// A matrix of a low rank arrives whole once the factors have turned to it.
TEST(PowerSgd, FindsAMatrixOfItsRank) {
  constexpr size_t kRows = 60, kColumns = 90;
  const Strip strip{0, kRows, kColumns, 1};
  const Values a = gradient_of(2 * kRows, 1), b = gradient_of(2 * kColumns, 2);
  Values matrix(kRows * kColumns);
  for (size_t i = 0; i < kRows; i++)
    for (size_t j = 0; j < kColumns; j++) matrix[i * kColumns + j] = a[i] * b[j] + a[kRows + i] * b[kColumns + j];
  const auto codec = codec_of("powersgd:2");
  EXPECT_LT(codec->bytes(strip), kRows * kColumns);
  for (int step = 0; step < 3; step++) encoded(*codec, strip, matrix);
  const Values left = difference(matrix, decoded(*codec, strip, encoded(*codec, strip, matrix)));
  EXPECT_LT(squares(left), squares(matrix) * 1e-8);
}

/// A few large ones among nothing come back, for a tenth of the bytes.
TEST(Sketch, RecoversWhatIsLarge) {
  const size_t count = 20000;
  Values values(count, 0);
  for (size_t i = 0; i < 30; i++) values[i * 661] = i % 2 == 0 ? 1.0f : -1.0f;
  const auto codec = codec_of("sketch:0.1");
  const Strip strip = strip_of(count, 9);
  EXPECT_LT(codec->bytes(strip), count * sizeof(float) / 9);
  const Values left = difference(values, decoded(*codec, strip, encoded(*codec, strip, values)));
  EXPECT_LT(squares(left), 0.2 * squares(values));
}

TEST(Specs, AreReadAndWritten) {
  EXPECT_EQ(spec_names().size(), kCodecTable.size() + 1);
  for (const std::string& name : kCodecs) EXPECT_EQ(name_of(spec_named(name)), name);
  EXPECT_FALSE(spec_named("none"));
  EXPECT_EQ(make_codec(spec_named("none"), true), nullptr);
}

TEST(Table, EveryRowParsesNamesItselfAndEncodes) {
  std::set<Kind> kinds;
  std::ifstream page(CODECS_PAGE);
  const std::string text((std::istreambuf_iterator<char>(page)), {});
  for (const CodecRow& row : kCodecTable) {
    EXPECT_TRUE(kinds.insert(row.kind).second && row.kind != Kind::none) << row.name << " has another codec's kind";
    const Spec spec = spec_named(row.example);
    EXPECT_EQ(spec.kind, row.kind);
    EXPECT_EQ(name_of(spec), row.example);
    EXPECT_EQ(spec.by_matrix(), row.by_matrix);
    const Values values = gradient_of(1000, 3);
    const auto codec = codec_of(row.example);
    const Bytes message = encoded(*codec, strip_of(1000), values);
    EXPECT_EQ(message[0], static_cast<std::byte>(row.kind)) << row.name;
    EXPECT_LT(squares(difference(values, decoded(*codec, strip_of(1000), message))), 20 * squares(values)) << row.name;
    const std::string name = fmt::format("{}{}", row.name,
                                         row.setting == Setting::rate   ? ":R"
                                         : row.setting == Setting::rank ? ":K"
                                                                        : "");
    EXPECT_NE(spec_help().find(name + ": " + row.help), std::string::npos);
    EXPECT_NE(text.find(fmt::format("\n| `{}` | ", name)), std::string::npos)
        << "docs/compression.md has no row of " << name;
  }
}

TEST(Specs, ErrorsTeach) {
  const auto error_of = [](const std::string& text) -> std::string {
    try {
      spec_named(text);
      return "";
    } catch (const std::exception& error) {
      return error.what();
    }
  };
  EXPECT_NE(error_of("topc:0.1").find("did you mean 'topk'"), std::string::npos) << error_of("topc:0.1");
  EXPECT_NE(error_of("topk").find("topk:R"), std::string::npos);
  for (const char* const text : {"topk:0", "topk:1.5", "topk:nan", "topk:-1", "topk:", "topk:0.1x", "randomk:2"})
    EXPECT_NE(error_of(text).find("part of the elements"), std::string::npos) << text;
  for (const char* const text : {"powersgd:0", "powersgd:65", "powersgd:1.5"})
    EXPECT_NE(error_of(text).find("whole number"), std::string::npos) << text;
  EXPECT_NE(error_of("int8:3").find("no settings"), std::string::npos);
}

}  // namespace
}  // namespace trireme::compress::tests
