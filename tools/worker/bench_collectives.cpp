// The measured collectives of ours; each peer's program in bench/peers does the same.
#include <fmt/format.h>

#include <algorithm>
#include <fstream>

#include <trireme/cluster/world.h>

#include "../bench.h"

namespace trireme::tools {
namespace {

/// Once; `data` has room for all, and `mine` for a rank's share.
void run_once(comm::Communicator& group, const std::string& collective, float* data, float* mine, size_t count) {
  const size_t share = count / static_cast<size_t>(group.size());
  if (collective == "reduce-scatter")
    group.reduce_scatter(data, mine, share, DType::f32, Op::sum, "x");
  else if (collective == "all-gather")
    group.all_gather(mine, data, share, DType::f32, "x");
  else
    group.allreduce(data, count, DType::f32, Op::sum, "x");
}

}  // namespace

int measure_collective(const std::string& out, const std::string& collective, const std::vector<size_t>& sizes,
                       bool private_memory) {
  World world = join({.timeout_setting = ""});
  const size_t most = *std::max_element(sizes.begin(), sizes.end());
  std::vector<std::vector<float>> own;
  const auto memory = [&](size_t bytes) {
    if (private_memory) return own.emplace_back(bytes / 4).data();
    const auto block = world.local().allocate(bytes, "the benchmark");
    return reinterpret_cast<float*>(block.parts[static_cast<size_t>(world.local().rank())]);
  };
  float* const data = memory(most);
  float* const mine = memory(most);
  std::fill_n(data, most / 4, 1.f);
  std::string text;
  for (size_t bytes : sizes) {
    const size_t count = bytes / 4;
    const int rounds = static_cast<int>(std::clamp<size_t>((size_t{1} << 25) / count, 8, 40000));
    Clock::time_point start;
    for (int round = -3; round < rounds; round++) {
      if (round == 0) start = Clock::now();
      run_once(world.comm(), collective, data, mine, count);
    }
    text += fmt::format("{{\"bytes\": {}, \"us\": {:.4f}}}\n", bytes, seconds_since(start) / rounds * 1e6);
  }
  if (world.first()) std::ofstream(out) << text;
  return 0;
}

}  // namespace trireme::tools
