#pragma once
// The codecs, each in its own file. Use make_codec().
#include <trireme/compress/codec.h>

namespace trireme::compress {

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
