// label: unit
// What a crew does after it has lost a rank: it trains on, with state that was kept or restored, as a fresh crew of its
// size would; and its parts are groups like all others.
#include <gtest/gtest.h>

#include <cmath>
#include <mutex>
#include <optional>

#include <trireme/exchange/kept_state.h>
#include <trireme/parallel/parallel.h>
#include <trireme/state/image.h>

#include "ranks.h"

namespace trireme::test {
namespace {

constexpr int kBefore = 5, kAfter = 9;

std::mutex making;  // libtorch's generator is one for all threads

struct Net : torch::nn::Module {
  explicit Net(int width)
      : first(register_module("first", torch::nn::Linear(6, width))),
        norm(register_module("norm", torch::nn::BatchNorm1d(width))),
        last(register_module("last", torch::nn::Linear(width, 3))) {}
  torch::Tensor forward(const torch::Tensor& x) { return last(torch::relu(norm(first(x)))); }
  torch::nn::Linear first;
  torch::nn::BatchNorm1d norm;
  torch::nn::Linear last;
};

std::shared_ptr<Net> net_of(uint64_t seed, int width = 8) {
  const std::lock_guard lock(making);
  torch::manual_seed(seed);
  return std::make_shared<Net>(width);
}

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

ParallelOptions options_of(const char* mode) {
  return {.exchange = {.sync = exchange::sync_named(mode), .bucket_bytes = 128},
          .schedule = {.kind = space::RateSchedule::step, .step_size = 3, .gamma = 0.5}};
}

/// Until a rank has left: ranks are threads here, and leaving is what others notice of a death.
void await_loss(World& world) { EXPECT_THROW(while (true) world.comm().barrier("until somebody has left"), PeerLost); }

struct Outcome {
  std::string hash;
  double learning_rate = 0;
  bool operator==(const Outcome&) const = default;
};

std::ostream& operator<<(std::ostream& out, const Outcome& outcome) {
  return out << outcome.hash << " at " << outcome.learning_rate;
}

enum class From { memory, image };

/// Three train, rank 1 leaves, the others go on.
Outcome train_regrouped(const char* mode, const space::UpdaterOptions& optimizer, From from,
                        std::vector<state::Image>& images) {
  Outcome outcome;
  images.assign(3, {});
  run_ranks(3, [&](World& world) {
    const auto net = net_of(1);
    std::optional<Parallel> parallel;
    parallel.emplace(world, *net, optimizer, options_of(mode));
    train(*parallel, *net, world.rank(), 0, kBefore);
    parallel->settled([] {});  // buffers are not in shared memory: those who are left have what all have
    parallel->visit(images[static_cast<size_t>(world.rank())]);
    if (world.rank() == 1) return;
    await_loss(world);
    parallel.reset();
    const Group& crew = world.regroup();
    parallel.emplace(crew, *net, optimizer, options_of(mode));
    if (from == From::memory) {
      exchange::KeptState kept(world.local().memory(), "all/0", 0);
      EXPECT_TRUE(kept.whole());
      EXPECT_EQ(kept.scalar("updates"), kBefore);
      parallel->restore(kept);
    } else {
      state::Image all;
      for (const state::Image& image : images) all.add(image);
      parallel->restore(all);
    }
    train(*parallel, *net, crew.rank(), kBefore, kAfter);
    const std::string hash = parallel->sha256();
    if (crew.first()) outcome = {hash, parallel->learning_rate()};
  });
  return outcome;
}

/// Two that were never three.
Outcome train_fresh(const char* mode, const space::UpdaterOptions& optimizer, const std::vector<state::Image>& images) {
  Outcome outcome;
  run_ranks(2, [&](World& world) {
    const auto net = net_of(2);
    Parallel parallel(world, *net, optimizer, options_of(mode));
    state::Image all;
    for (const state::Image& image : images) all.add(image);
    parallel.restore(all);
    train(parallel, *net, world.rank(), kBefore, kAfter);
    const std::string hash = parallel.sha256();
    if (world.first()) outcome = {hash, parallel.learning_rate()};
  });
  return outcome;
}

TEST(Regrouped, TrainsOnAsAFreshCrewOfItsSizeWould) {
  for (const char* mode : {"shared", "allreduce", "central"})
    for (const auto& optimizer : {space::momentum({.lr = 0.05}), space::adam({.lr = 0.05})})
      for (const From from : {From::memory, From::image}) {
        std::vector<state::Image> images;
        const Outcome regrouped = train_regrouped(mode, optimizer, from, images);
        EXPECT_EQ(regrouped.hash.size(), 64u);
        EXPECT_EQ(regrouped, train_fresh(mode, optimizer, images)) << mode << " " << space::name_of(optimizer.kind);
      }
}

TEST(Regrouped, PartsOfTheNewCrewTrainTheirOwnModels) {
  std::vector<std::string> hashes(5), alone(5);
  const auto train_part = [](const Group& group, int part) {
    const auto net = net_of(static_cast<uint64_t>(10 + part), 4 + 2 * part);
    Parallel parallel(group, *net, space::adam({.lr = 0.05}));
    train(parallel, *net, group.rank(), 0, 4);
    return parallel.sha256();
  };
  run_ranks(5, [&](World& world) {
    if (world.rank() == 2) return;
    await_loss(world);
    world.regroup();
    const Group pair = world.split(world.group().rank() / 2);  // ranks 0 and 1, ranks 3 and 4
    EXPECT_EQ(pair.describe(), world.rank() < 2 ? "ranks 0, 1 of epoch 1" : "ranks 3, 4 of epoch 1");
    hashes[static_cast<size_t>(world.rank())] = train_part(pair, world.group().rank() / 2);
    const Mesh mesh = world.mesh({{"data", 2}, {"tensor", 2}});
    EXPECT_EQ(mesh.group("data").describe(),
              mesh.coordinate("tensor") == 0 ? "ranks 0, 3 of epoch 1" : "ranks 1, 4 of epoch 1");
    mesh.group("data").comm().barrier("together");
    EXPECT_THROW(world.mesh({{"data", 3}, {"tensor", 2}}), InvalidArgument);
  });
  for (int part : {0, 1})
    run_ranks(2, [&](World& world) {
      alone[static_cast<size_t>(part * 3 + world.rank())] = train_part(world.group(), part);
    });
  EXPECT_EQ(hashes, alone);
}

TEST(Regrouped, AModelOfTheCrewBeforeSaysThatItsTimeIsOver) {
  run_ranks(3, [&](World& world) {
    const auto net = net_of(1);
    Parallel parallel(world, *net, space::sgd({.lr = 0.1}));
    train(parallel, *net, world.rank(), 0, 2);
    if (world.rank() == 1) return;
    await_loss(world);
    world.regroup();
    EXPECT_THROW(train(parallel, *net, world.rank(), 2, 3), Error);
    state::Image image;
    EXPECT_THROW(parallel.visit(image), Error);
    world.comm().barrier("the new crew is well");
  });
}

}  // namespace
}  // namespace trireme::test
