// label: multiproc
// ZeRO beside layers in parts: gradients go and parameters come in the middle of passes in which ranks wait for one
// another.
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <torch/torch.h>

#include <atomic>
#include <mutex>
#include <random>
#include <thread>

#include <trireme/trireme.h>

#include "../core/cluster/groups.h"

namespace trireme::tests {
namespace {

constexpr int64_t kWidth = 256, kHidden = 1024;

struct DeepImpl : torch::nn::Module {
  DeepImpl(int64_t blocks, const layers::TensorGroup& ranks) {
    static std::mutex random_numbers;  // ranks are threads, and libtorch's are the process's
    const std::lock_guard lock(random_numbers);
    torch::manual_seed(2);
    for (int64_t i = 0; i < blocks; i++) {
      in.push_back(register_module(fmt::format("in{}", i), layers::ColumnLinear(kWidth, kHidden, ranks)));
      out.push_back(register_module(fmt::format("out{}", i), layers::RowLinear(kHidden, kWidth, ranks)));
    }
  }
  /// `between` is called in front of each block, in its backward pass too.
  torch::Tensor forward(torch::Tensor x, const std::function<void(size_t)>& between) {
    for (size_t i = 0; i < in.size(); i++) {
      between(i);
      x = x + out[i]->forward(torch::tanh(in[i]->forward(x)));
      x.register_hook([between, i](const torch::Tensor& /*gradient*/) { between(i); });
    }
    return x;
  }
  std::vector<layers::ColumnLinear> in;
  std::vector<layers::RowLinear> out;
};
TORCH_MODULE(Deep);

double megabytes_of(const Group& group) {
  struct stat file {};
  fstat(group.local().segment().descriptor(), &file);
  return static_cast<double>(file.st_blocks) * 512 / 1e6;
}

torch::Tensor rows() {
  const auto generator = at::detail::createCPUGenerator(9);
  return torch::randn({4, kWidth}, generator, torch::kFloat32);
}

/// Each rank has 24 blocks of 1 MB, as two tensors of half a megabyte.
double most_beyond_rest(int zero, bool sync_batch_norm = false) {
  std::atomic<double> most{0};
  expect_all_well(run_world({0, 0, 1, 1}, [&](Group& group, cluster::Site&) {
    at::set_num_threads(1);
    const Mesh mesh(group, {{"data", 2}, {"tensor", 2}});
    Deep net(24, mesh);
    const exchange::Options asked{.bucket_bytes = 1 << 19, .zero = zero, .zero_window = 1};
    auto train =
        parallel(mesh, *net, sgd({.lr = 0.01}), ParallelOptions{.exchange = asked, .sync_batch_norm = sync_batch_norm});
    const torch::Tensor x = rows();
    double rest = 0;
    for (int step = 0; step < 4; step++) {
      mesh.whole().comm().barrier("at rest");
      rest = megabytes_of(mesh.group("data"));
      mesh.whole().comm().barrier("measured");
      const auto look = [&](size_t) {
        if (step >= 2) most.store(std::max(most.load(), megabytes_of(mesh.group("data")) - rest));
      };
      train.step([&] { return net->forward(x, look).square().mean(); });
    }
  }));
  return most.load();
}

/// Two ranks of a machine, each with 24 MB of gradients; the least window is two buckets, and half of it is for them.
TEST(MeshZero, KeepsToTheWindowWhereLayersWait) {
  EXPECT_GT(most_beyond_rest(2, true), 36) << "where ranks of other replicas are waited for all gradients stay";
  EXPECT_LT(most_beyond_rest(2), 10);
  EXPECT_LT(most_beyond_rest(3), 10);
}

/// Some ranks are late, each time others, so that every wait is one in some step; data groups of two ranks on each of
/// two machines.
TEST(MeshZero, NobodyWaitsForWhoWaitsForIt) {
  for (int zero : {2, 3}) {
    std::vector<std::string> hashes(2);
    for (const bool late : {false, true})
      expect_all_well(run_world({0, 0, 0, 0, 1, 1, 1, 1}, [&](Group& group, cluster::Site&) {
        at::set_num_threads(1);
        const Mesh mesh(group, {{"data", 4}, {"tensor", 2}});
        Deep net(4, mesh);
        const exchange::Options asked{.bucket_bytes = 100'000, .clip = 0.5, .zero = zero, .zero_window = 1};
        auto train = parallel(mesh, *net, adam({.lr = 0.001}), asked);
        std::mt19937 random(static_cast<unsigned>(group.rank()));
        const auto wait = [&](size_t) {
          if (late) std::this_thread::sleep_for(std::chrono::microseconds(random() % 4 == 0 ? random() % 4000 : 0));
        };
        const torch::Tensor x = rows().narrow(0, mesh.coordinate("data"), 1);
        for (int step = 0; step < 12; step++) train.step([&] { return net->forward(x, wait).square().mean(); });
        const std::string hash = train.sha256();
        if (group.first()) hashes[late ? 1 : 0] = hash;
      }));
    EXPECT_EQ(hashes[0], hashes[1]) << "zero " << zero;
  }
}

}  // namespace
}  // namespace trireme::tests
