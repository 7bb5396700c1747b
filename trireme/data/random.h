#pragma once
// Small, stable random numbers: the same on every machine and with every standard library.
#include <cstdint>

namespace trireme::data {

/// SplitMix64: a sequence from any seed; also a good mixer of a seed and a counter.
class Random {
 public:
  explicit Random(uint64_t seed) : state_(seed) {}
  uint64_t next() {
    uint64_t z = state_ += 0x9e3779b97f4a7c15;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9;
    z = (z ^ (z >> 27)) * 0x94d049bb133111eb;
    return z ^ (z >> 31);
  }
  /// Uniform in [0, bound), without bias that matters (bound far below 2⁶⁴).
  uint64_t below(uint64_t bound) {
    return static_cast<uint64_t>((static_cast<unsigned __int128>(next()) * bound) >> 64);
  }
  /// Uniform in [0, 1).
  double uniform() { return static_cast<double>(next() >> 11) * 0x1p-53; }

 private:
  uint64_t state_;
};

inline uint64_t mix(uint64_t a, uint64_t b) { return Random(Random(a).next() ^ b).next(); }

}  // namespace trireme::data
