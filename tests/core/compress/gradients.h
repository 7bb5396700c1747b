#pragma once
// Gradients that are made up, and codecs by name.
#include <cmath>
#include <cstring>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include <trireme/compress/codecs.h>

namespace trireme::compress::tests {

/// All codecs of the table, with these settings instead of their example's.
inline std::vector<std::string> each_codec(const std::map<std::string, std::vector<std::string>>& settings) {
  std::vector<std::string> all;
  for (const CodecRow& row : kCodecTable) {
    if (!settings.contains(row.name)) all.emplace_back(row.example);
    if (settings.contains(row.name))
      for (const std::string& setting : settings.at(row.name)) all.push_back(row.name + (":" + setting));
  }
  return all;
}

inline const std::vector<std::string> kCodecs =
    each_codec({{"topk", {"0.01", "1"}}, {"powersgd", {"1", "4"}}, {"sketch", {"0.3"}}});
/// None of them divides a block, a word or a vector.
constexpr size_t kSizes[] = {1, 2, 7, 31, 33, 255, 257, 1023, 1025, 5000};

using Values = std::vector<float>;
using Bytes = std::vector<std::byte>;

inline std::unique_ptr<Codec> codec_of(const std::string& name, bool feedback = false) {
  return make_codec(spec_named(name), feedback);
}

/// As a matrix where that is one.
inline Strip strip_of(size_t count, uint64_t seed = 1, size_t place = 0) {
  for (size_t rows = static_cast<size_t>(std::sqrt(static_cast<double>(count))); rows > 1; rows--)
    if (count % rows == 0) return {place, rows, count / rows, seed};
  return {place, 1, count, seed};
}

/// Many small ones and a few large ones.
inline Values gradient_of(size_t count, uint64_t seed) {
  std::mt19937_64 random(seed);
  std::normal_distribution<float> normal;
  Values values(count);
  for (float& value : values) {
    const float one = normal(random);
    value = one * one * one * 0.01f;
  }
  return values;
}

inline Bytes encoded(Codec& codec, const Strip& strip, const Values& values) {
  Bytes message(codec.bytes(strip));
  codec.encode(strip, values.data(), message);
  return message;
}

inline Values decoded(Codec& codec, const Strip& strip, const Bytes& message) {
  Values values(strip.count(), 0);
  codec.add(strip, message, values.data());
  return values;
}

inline double squares(const Values& values) {
  double sum = 0;
  for (const float value : values) sum += static_cast<double>(value) * static_cast<double>(value);
  return sum;
}

inline Values difference(const Values& a, const Values& b) {
  Values out(a.size());
  for (size_t i = 0; i < a.size(); i++) out[i] = a[i] - b[i];
  return out;
}

}  // namespace trireme::compress::tests
