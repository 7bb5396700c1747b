// label: unit
// All that a module trains with, read in another thread while it trains on.
#include <gtest/gtest.h>

#include <mutex>
#include <thread>

#include <trireme/parallel/parallel.h>
#include <trireme/state/image.h>

#include "ranks.h"

namespace trireme::test {
namespace {

struct Net : torch::nn::Module {
  Net()
      : first(register_module("first", torch::nn::Linear(300, 200))),
        norm(register_module("norm", torch::nn::BatchNorm1d(200))),
        frozen(register_module("frozen", torch::nn::Linear(200, 40))),
        last(register_module("last", torch::nn::Linear(40, 3))) {
    for (torch::Tensor& parameter : frozen->parameters()) parameter.set_requires_grad(false);
  }
  torch::Tensor forward(const torch::Tensor& x) { return last(torch::relu(frozen(norm(first(x))))); }
  torch::nn::Linear first;
  torch::nn::BatchNorm1d norm;
  torch::nn::Linear frozen, last;
};

std::mutex making;  // libtorch's generator is one for all threads

std::shared_ptr<Net> net_of(uint64_t seed) {
  const std::lock_guard lock(making);
  torch::manual_seed(seed);
  return std::make_shared<Net>();
}

void train(Parallel& parallel, Net& net, int rank, int steps) {
  for (int step = 0; step < steps; step++) {
    const torch::Tensor x = torch::arange(1, 8 * 300 + 1).reshape({8, 300}).mul(0.37 * (step + 2)).add(rank).sin();
    parallel.step([&] { return net.forward(x).pow(2).mean(); });
  }
}

state::Image read(state::Snapshot& snapshot) {
  state::Image image;
  image.about(snapshot.about());
  for (const auto& [name, value] : snapshot.scalars()) image.scalar(name, value);
  for (size_t part = 0; part < snapshot.parts().size(); part++) {
    const auto& [vector, range] = snapshot.parts()[part];
    std::vector<std::byte> bytes(range.size());
    for (size_t at = 0; at < bytes.size(); at += state::Snapshot::kChunk) {
      const size_t size = std::min(bytes.size() - at, state::Snapshot::kChunk);
      snapshot.read(part, at, std::span(bytes).subspan(at, size));
      snapshot.release(part, at + size);
      std::this_thread::yield();
    }
    image.part(vector, range, bytes);
  }
  return image;
}

void expect_as_shown(const exchange::Sync& sync, int servers, double clip) {
  run_job(2, servers, [&](World& world) {
    const auto net = net_of(1);
    std::shared_ptr<state::Snapshot> last;
    state::Image end;
    {
      Parallel parallel(world, *net, space::adam({.lr = 0.01}),
                        {.exchange = {.sync = sync, .clip = clip}, .accumulate = 2, .overlap_next = true});
      train(parallel, *net, world.rank(), 6);
      state::Image wanted, got, before;
      parallel.visit(wanted);
      const auto snapshot = parallel.snapshot(parallel.owners());
      EXPECT_TRUE(snapshot->contents() == wanted.contents());
      std::thread reader([&] { got = read(*snapshot); });
      train(parallel, *net, world.rank(), 40);
      reader.join();
      EXPECT_TRUE(got == wanted) << exchange::name_of(sync) << ", rank " << world.rank();
      EXPECT_EQ(got.contents().of("buffers/norm.running_mean").size(), 1u);
      EXPECT_EQ(got.contents().of("buffers/norm.running_mean")[0].range.size(), 800u);

      parallel.visit(before);
      EXPECT_FALSE(before == wanted);
      const auto kept = parallel.snapshot(parallel.owners());
      parallel.exclusive([&] { net->first->weight.zero_(); });
      EXPECT_TRUE(read(*kept) == before) << exchange::name_of(sync) << ", rank " << world.rank();
      parallel.visit(end);
      last = parallel.snapshot(parallel.owners());
    }
    EXPECT_TRUE(read(*last) == end) << "it outlives what it was taken of";
  });
}

TEST(ParallelSnapshot, IsWhatVisitShowedHoweverTrainingGoesOn) {
  expect_as_shown(exchange::Sync::shared, 0, 0);
  expect_as_shown(exchange::Sync::shared, 0, 0.5);
  expect_as_shown(exchange::Sync::allreduce, 0, 0);
  expect_as_shown(exchange::Sync::server, 1, 0);
}

TEST(ParallelSnapshot, IsTakenBetweenUpdates) {
  run_job(1, 0, [&](World& world) {
    const auto net = net_of(1);
    Parallel parallel(world, *net, space::sgd({.lr = 0.01}), ParallelOptions{.accumulate = 2});
    train(parallel, *net, 0, 1);
    try {
      parallel.snapshot(parallel.owners());
      FAIL() << "half of an update had gone";
    } catch (const InvalidArgument& error) {
      EXPECT_NE(std::string(error.what()).find("1 of 2 micro-batches"), std::string::npos) << error.what();
    }
  });
}

}  // namespace
}  // namespace trireme::test
