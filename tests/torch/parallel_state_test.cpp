// label: unit
// All that a module trains with, buffers included: shown, thrown away with its job, restored.
#include <gtest/gtest.h>

#include <cmath>
#include <mutex>

#include <trireme/parallel/parallel.h>
#include <trireme/state/image.h>

#include "ranks.h"

namespace trireme::test {
namespace {

struct Net : torch::nn::Module {
  Net()
      : first(register_module("first", torch::nn::Linear(6, 8))),
        norm(register_module("norm", torch::nn::BatchNorm1d(8))),
        last(register_module("last", torch::nn::Linear(8, 3))) {}
  torch::Tensor forward(const torch::Tensor& x) { return last(torch::relu(norm(first(x)))); }
  torch::nn::Linear first;
  torch::nn::BatchNorm1d norm;
  torch::nn::Linear last;
};

torch::Tensor batch(int rank, int step) {
  torch::Tensor x = torch::empty({10, 6});
  for (int64_t i = 0; i < 60; i++)
    x.data_ptr<float>()[i] =
        std::sin(static_cast<float>(i + 1) * 0.37f * static_cast<float>(step + 2) + static_cast<float>(rank));
  return x;
}

void train(Parallel& parallel, Net& net, int rank, int first, int last) {
  for (int step = first; step < last; step++)
    parallel.step([&] { return net.forward(batch(rank, step)).pow(2).mean(); });
}

std::mutex making;  // libtorch's generator is one for all threads

std::shared_ptr<Net> net_of(uint64_t seed) {
  const std::lock_guard lock(making);
  torch::manual_seed(seed);
  return std::make_shared<Net>();
}

struct Ended {
  std::vector<state::Image> images;
  std::string hash;
  double learning_rate = 0;
};

Ended run(const exchange::Sync& sync, int ranks, int servers, const std::vector<state::Image>* kept, int first) {
  Ended ended{std::vector<state::Image>(static_cast<size_t>(ranks)), "", 0};
  run_job(ranks, servers, [&](World& world) {
    const auto mine = static_cast<size_t>(world.rank());
    const auto net = net_of(kept == nullptr ? 1 : 2);
    Parallel parallel(
        world, *net, space::adam({.lr = 0.05}),
        {.exchange = {.sync = sync}, .schedule = {.kind = space::RateSchedule::step, .step_size = 3, .gamma = 0.5}});
    if (kept != nullptr) {
      state::Image image = (*kept)[mine];
      parallel.restore(image);
    }
    train(parallel, *net, world.rank(), first, 5);
    parallel.visit(ended.images[mine]);
    const std::string vector = "buffers/norm.running_mean";
    EXPECT_EQ(ended.images[mine].contents().of(vector).size(), 1u);
    EXPECT_EQ(parallel.owners().of(vector).size(), static_cast<size_t>(ranks));
    train(parallel, *net, world.rank(), 5, 9);
    const std::string hash = parallel.sha256();
    if (world.first()) ended.hash = hash, ended.learning_rate = parallel.learning_rate();
  });
  return ended;
}

TEST(ParallelState, ANewModuleGoesOnWithTheSameBits) {
  for (const auto& [sync, ranks, servers] : {std::tuple(exchange::Sync(exchange::Sync::shared), 2, 0),
                                             std::tuple(exchange::Sync(exchange::Sync::server), 2, 1),
                                             std::tuple(exchange::Sync(exchange::Sync::async), 1, 1)}) {
    const Ended whole = run(sync, ranks, servers, nullptr, 0);
    const Ended later = run(sync, ranks, servers, &whole.images, 5);
    for (size_t rank = 0; rank < whole.images.size(); rank++)
      EXPECT_TRUE(later.images[rank] == whole.images[rank]) << exchange::name_of(sync) << ", rank " << rank;
    EXPECT_EQ(later.hash, whole.hash) << exchange::name_of(sync);
    EXPECT_EQ(later.learning_rate, whole.learning_rate);
  }
}

TEST(ParallelState, ABufferThatIsNotThereIsNamed) {
  const Ended whole = run(exchange::Sync::shared, 1, 0, nullptr, 0);
  state::Image bad;
  bad.about(whole.images[0].about());
  for (const std::string& vector : whole.images[0].contents().vectors())
    for (const state::Holding& part : whole.images[0].contents().of(vector))
      if (vector != "buffers/norm.running_var")
        bad.part(vector, part.range, whole.images[0].bytes_of(vector, part.range));
  for (const auto& [name, value] : whole.images[0].scalars()) bad.scalar(name, value);
  run_job(1, 0, [&](World& world) {
    const auto net = net_of(3);
    Parallel parallel(world, *net, space::adam({.lr = 0.05}));
    const std::string before = parallel.sha256();
    try {
      parallel.restore(bad);
      FAIL() << "there was no running_var";
    } catch (const InvalidArgument& error) {
      EXPECT_NE(std::string(error.what()).find("buffers/norm.running_var"), std::string::npos) << error.what();
    }
    EXPECT_EQ(parallel.sha256(), before);
  });
}

}  // namespace
}  // namespace trireme::test
