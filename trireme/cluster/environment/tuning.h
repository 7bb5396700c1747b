#pragma once
// Which allreduce between machines is faster at which size: measured by `trireme tune`, kept in a file, used by World.
#include <cstddef>
#include <map>
#include <optional>
#include <string>

namespace trireme::cluster {

/// The file's name in the cache folder.
constexpr const char* kTuningFile = "network.json";

/// Seconds of an allreduce by bytes.
using Timings = std::map<size_t, double>;

/// What network::Options::direct_bytes should be: the last measured size before those from which on the ring stays
/// clearly faster. 0 when it always is, the largest number when it never is. Sizes that only one of the two has are
/// left out.
size_t best_direct_bytes(const Timings& direct, const Timings& ring);

struct Tuning {
  std::string engine;  // "gloo"
  int machines = 2;
  size_t direct_bytes = 0;
  Timings direct, ring;  // for people who read the file
};

/// Adds it to the file, in the place of an older one of the same engine and number of machines. Throws IoError.
void keep_tuning(const std::string& file, const Tuning& tuning);
/// None when the file is absent, damaged, or does not have it.
std::optional<size_t> kept_direct_bytes(const std::string& file, const std::string& engine, int machines);

}  // namespace trireme::cluster
