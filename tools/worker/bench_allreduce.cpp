// The measured allreduce of ours; each peer's program in bench/peers does the same.
#include <fmt/format.h>

#include <algorithm>
#include <fstream>

#include <trireme/cluster/world.h>

#include "../bench.h"

namespace trireme::tools {

int measure_allreduce(const std::string& out, const std::vector<size_t>& sizes, bool private_memory) {
  World world = join({.timeout_setting = ""});
  const size_t most = *std::max_element(sizes.begin(), sizes.end());
  std::vector<float> own(private_memory ? most / 4 : 0, 1.f);
  float* data =
      private_memory
          ? own.data()
          : reinterpret_cast<float*>(
                world.local().allocate(most, "the benchmark").parts[static_cast<size_t>(world.local().rank())]);
  std::fill_n(data, most / 4, 1.f);
  std::string text;
  for (size_t bytes : sizes) {
    const size_t count = bytes / 4;
    const int rounds = static_cast<int>(std::clamp<size_t>((size_t{1} << 25) / count, 8, 40000));
    Clock::time_point start;
    for (int round = -3; round < rounds; round++) {
      if (round == 0) start = Clock::now();
      world.comm().allreduce(data, count, DType::f32, Op::sum, "x");
    }
    text += fmt::format("{{\"bytes\": {}, \"us\": {:.4f}}}\n", bytes, seconds_since(start) / rounds * 1e6);
  }
  if (world.first()) std::ofstream(out) << text;
  return 0;
}

}  // namespace trireme::tools
