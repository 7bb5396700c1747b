#pragma once
// The codecs, each in its own file, and the table of them: from it come the names that `--compress` takes, their help,
// make_codec() and what tests try. Use make_codec().
#include <array>

#include <trireme/compress/codec.h>

namespace trireme::compress {

/// The first byte of a message. Numbers stay; those from 128 on are for codecs of users.
enum class Kind : uint8_t {
  none = 0,
  fp16 = 1,
  bf16 = 2,
  int8 = 3,
  sign = 4,
  topk = 5,
  randomk = 6,
  powersgd = 7,
  sketch = 8
};

/// Two bytes an element.
std::unique_ptr<Codec> make_half();
std::unique_ptr<Codec> make_brain();
/// A byte an element, and a scale for each block; rounded by chance, so that the mean of what arrives is what was sent.
std::unique_ptr<Codec> make_int8();
/// A bit an element, and the mean magnitude of each block.
std::unique_ptr<Codec> make_sign();
/// The largest elements with their indices: exactly as many as the rate says.
std::unique_ptr<Codec> make_topk(double rate);
/// Elements by chance, one of each of as many equal parts; their indices follow from a seed. `unbiased`: scaled up to
/// stand for those that are not sent.
std::unique_ptr<Codec> make_randomk(double rate, bool unbiased);
/// Two factors of a matrix, from one power iteration that goes on where the last one of this place ended.
std::unique_ptr<Codec> make_powersgd(int rank);
/// A count-sketch: every element is added, with a sign by chance, to one cell of each of three rows; decoding recovers
/// the largest.
std::unique_ptr<Codec> make_sketch(double rate);

enum class Setting : uint8_t { nothing, rate, rank };

struct CodecRow {
  Kind kind;
  const char* name;
  Setting setting;
  const char* example;  // with a setting
  const char* help;     // what is sent
  std::unique_ptr<Codec> (*make)(const Spec& spec, bool feedback);
  bool by_matrix = false;  // it goes by whole rows of matrices
};

inline constexpr auto kCodecTable = std::to_array<CodecRow>({
    {Kind::fp16, "fp16", Setting::nothing, "fp16", "half of the bytes", [](const Spec&, bool) { return make_half(); }},
    {Kind::bf16, "bf16", Setting::nothing, "bf16", "the upper half of each float",
     [](const Spec&, bool) { return make_brain(); }},
    {Kind::int8, "int8", Setting::nothing, "int8", "a quarter of the bytes",
     [](const Spec&, bool) { return make_int8(); }},
    {Kind::sign, "sign", Setting::nothing, "sign", "a bit an element", [](const Spec&, bool) { return make_sign(); }},
    {Kind::topk, "topk", Setting::rate, "topk:0.01", "the part R of the elements that is largest",
     [](const Spec& spec, bool) { return make_topk(spec.rate); }},
    {Kind::randomk, "randomk", Setting::rate, "randomk:0.1", "a part R of the elements, by chance",
     [](const Spec& spec, bool feedback) { return make_randomk(spec.rate, !feedback); }},
    {Kind::powersgd, "powersgd", Setting::rank, "powersgd:2", "factors of K columns of each matrix",
     [](const Spec& spec, bool) { return make_powersgd(spec.rank); }, true},
    {Kind::sketch, "sketch", Setting::rate, "sketch:0.1", "what is large, in a part R of the bytes",
     [](const Spec& spec, bool) { return make_sketch(spec.rate); }},
});

/// Elements that a rate keeps: at least one.
size_t kept_of(double rate, size_t count);

/// A well mixed number; the next one follows from it.
constexpr uint64_t mixed(uint64_t x) {
  x += 0x9e3779b97f4a7c15;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9;
  x = (x ^ (x >> 27)) * 0x94d049bb133111eb;
  return x ^ (x >> 31);
}

/// Throws Corruption that names the codec unless these numbers are finite.
void check_finite(const char* codec, const float* values, size_t count);

}  // namespace trireme::compress
