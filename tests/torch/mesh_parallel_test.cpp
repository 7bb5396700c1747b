// label: multiproc
// One model in parts on the ranks of a mesh, against the ordinary model in one process with libtorch's own optimizers.
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <fstream>

#include <trireme/checkpoint/reader.h>
#include <trireme/state/image.h>
#include <trireme/trireme.h>

#include "mesh_nets.h"
#include "ranks.h"

namespace trireme {
namespace {

namespace fs = std::filesystem;
using test::DividedNet;

struct Grid {
  int data = 1, tensor = 1;
  int ranks() const { return data * tensor; }
  std::string name() const { return fmt::format("{} x {}", data, tensor); }
};

struct Recipe {
  space::UpdaterOptions optimizer = sgd({.lr = 0.05});
  int accumulate = 1;
  double clip = 0;
  bool schedule = false;
  Sync sync = Sync::shared;
  size_t bucket_bytes = 512;
  ParallelOptions options() const {
    ParallelOptions options{.exchange = {.sync = sync, .bucket_bytes = bucket_bytes, .clip = clip},
                            .accumulate = accumulate};
    if (schedule) options.schedule = {.kind = space::RateSchedule::cosine, .warmup = 3, .total = kSteps};
    return options;
  }
  static constexpr int64_t kSteps = 20;
};

constexpr int64_t kSteps = Recipe::kSteps, kBatch = 24;

std::pair<torch::Tensor, torch::Tensor> batch_of(int64_t step) {
  const std::lock_guard lock(test::making);
  torch::manual_seed(static_cast<uint64_t>(1000 + step));
  const auto x = torch::randn({kBatch, DividedNet::kIn}, torch::kFloat64);
  return {x, torch::stack({x.sum(1), x.pow(2).sum(1), x.select(1, 0)}, 1)};
}

torch::Tensor loss_of(DividedNet& net, const torch::Tensor& x, const torch::Tensor& y) {
  return torch::mse_loss(net.forward(x), y);
}

std::unique_ptr<torch::optim::Optimizer> plain(const space::UpdaterOptions& o, const std::vector<torch::Tensor>& all) {
  if (o.kind == space::Optimizer::adamw)
    return std::make_unique<torch::optim::AdamW>(all, torch::optim::AdamWOptions(o.lr).weight_decay(o.weight_decay));
  const double momentum = o.kind == space::Optimizer::momentum ? o.momentum : 0;
  return std::make_unique<torch::optim::SGD>(all, torch::optim::SGDOptions(o.lr).momentum(momentum));
}

struct Reference {
  std::map<std::string, torch::Tensor> parameters;
  std::vector<double> losses, norms;
};

/// The ordinary model, by libtorch alone.
Reference alone(const Recipe& recipe) {
  DividedNet net;
  Reference result;
  const auto optimizer = plain(recipe.optimizer, net.parameters());
  for (int64_t step = 0; step < kSteps; step++) {
    const double rate = space::rate_at(recipe.options().schedule, recipe.optimizer.lr, step);
    optimizer->param_groups()[0].options().set_lr(rate);
    optimizer->zero_grad();
    const auto [x, y] = batch_of(step);
    const auto loss = loss_of(net, x, y);
    loss.backward();
    result.losses.push_back(loss.item<double>());
    result.norms.push_back(torch::nn::utils::clip_grad_norm_(net.parameters(), recipe.clip > 0 ? recipe.clip : 1e30));
    optimizer->step();
  }
  for (const auto& item : net.named_parameters()) result.parameters[item.key()] = item.value().detach().clone();
  return result;
}

/// Micro-batch by micro-batch; the rank's loss.
Step one_step(Parallel& train, DividedNet& net, const Mesh& mesh, const Recipe& recipe, int64_t step) {
  const auto [x, y] = batch_of(step);
  const int64_t share = kBatch / mesh.size("data") / recipe.accumulate;
  Step done;
  for (int micro = 0; micro < recipe.accumulate; micro++) {
    const int64_t first = (mesh.coordinate("data") * recipe.accumulate + micro) * share;
    done = train.step([&, x = x, y = y] { return loss_of(net, x.narrow(0, first, share), y.narrow(0, first, share)); });
  }
  return done;
}

void expect_parts_of(const Reference& reference, DividedNet& net, const std::string& what) {
  for (const auto& item : net.named_parameters()) {
    torch::Tensor wanted = reference.parameters.at(item.key());
    if (item.key() == "in.weight" || item.key() == "in.bias") wanted = net.in->part.of(wanted, 0);
    if (item.key() == "out.weight") wanted = net.out->part.of(wanted, 1);
    EXPECT_LT((item.value() - wanted).abs().max().item<double>(), 1e-9) << item.key() << " of " << what;
  }
}

void run_mesh(const Grid& grid, const std::function<void(World&, const Mesh&, const Group*)>& body) {
  test::run_ranks(grid.ranks(), [&](World& world) {
    const Mesh mesh = world.mesh({{"data", grid.data}, {"tensor", grid.tensor}});
    body(world, mesh, grid.tensor > 1 ? &mesh.group("tensor") : nullptr);
  });
}

void expect_parity(const Grid& grid, const Recipe& recipe, const std::string& what) {
  const Reference reference = alone(recipe);
  run_mesh(grid, [&](World& world, const Mesh& mesh, const Group* group) {
    DividedNet net(group);
    auto train = parallel(mesh, net, recipe.optimizer, recipe.options());
    for (int64_t step = 0; step < kSteps; step++) {
      const Step done = one_step(train, net, mesh, recipe, step);
      EXPECT_NEAR(done.loss, reference.losses[static_cast<size_t>(step)], 1e-9) << what;
    }
    train.settled(
        [&] { expect_parts_of(reference, net, fmt::format("{}, {}, rank {}", grid.name(), what, world.rank())); });
  });
}

const std::vector<Grid> kGrids = {{1, 1}, {1, 2}, {2, 1}, {2, 2}, {1, 4}, {2, 3}, {3, 2}, {4, 2}};

TEST(MeshParallel, EndsLikeOneProcessWithEveryOptimizer) {
  for (const Grid& grid : kGrids) {
    expect_parity(grid, {.optimizer = sgd({.lr = 0.05})}, "sgd");
    expect_parity(grid, {.optimizer = momentum({.lr = 0.02})}, "momentum");
    expect_parity(grid, {.optimizer = adamw({.lr = 0.01, .weight_decay = 0.1})}, "adamw");
  }
}

TEST(MeshParallel, EndsLikeOneProcessWithAccumulationClippingAndASchedule) {
  for (const Grid& grid : kGrids) {
    expect_parity(grid, {.optimizer = momentum({.lr = 0.02}), .accumulate = 2}, "accumulate");
    expect_parity(grid, {.optimizer = adamw({.lr = 0.01}), .schedule = true}, "schedule");
    for (const Sync& sync : {Sync(Sync::shared), Sync(Sync::allreduce), Sync(Sync::central)})
      expect_parity(grid, {.optimizer = momentum({.lr = 0.05}), .clip = 0.7, .sync = sync},
                    fmt::format("clip with {}", exchange::name_of(sync)));
  }
}

TEST(MeshParallel, TheWayGradientsTravelMakesNoDifference) {
  for (const Grid& grid : {Grid{2, 2}, Grid{1, 4}})
    for (const Sync& sync : {Sync(Sync::allreduce), Sync(Sync::central)})
      for (const size_t bucket : {64, 1 << 20})
        expect_parity(
            grid,
            {.optimizer = adamw({.lr = 0.01}), .accumulate = 2, .schedule = true, .sync = sync, .bucket_bytes = bucket},
            fmt::format("{}, buckets of {}", exchange::name_of(sync), bucket));
}

/// Clipping that is never reached would prove nothing.
TEST(MeshParallel, TheNormThatClipsIsReached) {
  for (const double norm : alone({.optimizer = momentum({.lr = 0.05}), .clip = 0.7}).norms) EXPECT_GT(norm, 0.75);
}

TEST(MeshParallel, RanksThatDifferBeginWithTheFirstOnesNumbers) {
  std::vector<std::string> hashes(4);
  run_mesh({2, 2}, [&](World& world, const Mesh& mesh, const Group* group) {
    DividedNet net(group, mesh.coordinate("data") == 0 ? 5 : 77);  // parts of another model, on the second replica
    {
      const torch::NoGradGuard no_grad;
      if (world.rank() == 1) net.head->bias.fill_(9), net.seen.fill_(9);
    }
    auto train = parallel(mesh, net, sgd({.lr = 0.1}));
    hashes[static_cast<size_t>(world.rank())] = train.sha256();
  });
  for (const std::string& hash : hashes) EXPECT_EQ(hash, hashes[0]);
  run_mesh({1, 1}, [&](World&, const Mesh& mesh, const Group*) {
    DividedNet net;
    auto train = parallel(mesh, net, sgd({.lr = 0.1}));
    EXPECT_EQ(train.sha256(), hashes[0]);
  });
}

struct Folder {
  Folder() : path(fs::temp_directory_path() / fmt::format("trireme-mesh-{}-{}", getpid(), count++)) {
    fs::create_directories(path);
  }
  ~Folder() { fs::remove_all(path); }
  fs::path path;
  inline static int count = 0;
};

std::string bytes_of(const fs::path& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

const std::vector<Grid> kFew = {{1, 1}, {2, 1}, {1, 2}, {2, 2}, {1, 4}};

/// Hash, file and checkpoint of a mesh are those of the ordinary model with the same numbers, and each goes on with any
/// other's: the same parameters, optimizer state and counts bit by bit, then the same steps.
void expect_moves(const Recipe& recipe) {
  for (const Grid& from : kFew) {
    const Folder folder;
    std::string hash, path;
    std::vector<state::Image> shown(static_cast<size_t>(from.ranks()));
    std::vector<double> losses;
    std::map<std::string, torch::Tensor> last;
    run_mesh(from, [&](World& world, const Mesh& mesh, const Group* group) {
      DividedNet net(group);
      auto train = parallel(mesh, net, recipe.optimizer, recipe.options());
      for (int64_t step = 0; step < 7; step++) one_step(train, net, mesh, recipe, step);
      const std::string kept = train.save_state(folder.path), mine = train.sha256();
      train.save(folder.path / "model.safetensors");
      train.visit(shown[static_cast<size_t>(world.rank())]);
      for (int64_t step = 7; step < 12; step++) {
        const double loss = one_step(train, net, mesh, recipe, step).loss;
        if (world.first()) losses.push_back(loss);
      }
      if (world.first()) hash = mine, path = kept;
    });
    state::Image whole = shown[0];
    for (size_t rank = 1; rank < shown.size(); rank++) whole.add(shown[rank]);
    const std::string file = bytes_of(folder.path / "model.safetensors");
    ASSERT_FALSE(file.empty());
    for (const Grid& to : kFew) {
      SCOPED_TRACE(fmt::format("{} to {}", from.name(), to.name()));
      std::vector<state::Image> loaded(static_cast<size_t>(to.ranks()));
      run_mesh(to, [&](World& world, const Mesh& mesh, const Group* group) {
        DividedNet net(group, 99);
        auto train = parallel(mesh, net, recipe.optimizer, recipe.options());
        EXPECT_EQ(train.load_state(path), 7);
        EXPECT_EQ(train.sha256(), hash);
        train.save(folder.path / "again.safetensors");
        train.visit(loaded[static_cast<size_t>(world.rank())]);
        for (int64_t step = 7; step < 12; step++)
          EXPECT_NEAR(one_step(train, net, mesh, recipe, step).loss, losses.at(static_cast<size_t>(step - 7)), 1e-9);
      });
      EXPECT_EQ(bytes_of(folder.path / "again.safetensors"), file);
      state::Image again = loaded[0];
      for (size_t rank = 1; rank < loaded.size(); rank++) again.add(loaded[rank]);
      for (const std::string& vector : again.contents().vectors()) {
        if (vector.starts_with("worker/")) continue;  // as many as there are ranks with samples
        for (const state::Holding& holding : again.contents().of(vector))
          EXPECT_EQ(again.bytes_of(vector, holding.range), whole.bytes_of(vector, holding.range)) << vector;
      }
      EXPECT_EQ(again.scalars(), whole.scalars());
      EXPECT_EQ(again.about().layout, whole.about().layout);
    }
  }
}

TEST(MeshParallel, AnyMeshGoesOnWithWhatAnyOtherHasSaved) {
  expect_moves({.optimizer = adamw({.lr = 0.01, .weight_decay = 0.1}), .schedule = true});
}
TEST(MeshParallel, SoItDoesWithCopiesAndMomentum) {
  expect_moves({.optimizer = momentum({.lr = 0.02}), .clip = 0.7, .sync = Sync::allreduce});
}

/// What is read of a snapshot is of its step, though training has gone on; large tensors are not copied when it is
/// taken.
struct Wide : torch::nn::Module {
  explicit Wide(const Group* group) {
    const std::lock_guard lock(test::making);
    torch::manual_seed(1);
    in = register_module("in", std::make_shared<test::Column>(64, 512, test::Part{group}));
    out = register_module("out", std::make_shared<test::Row>(512, 64, test::Part{group}));
  }
  torch::Tensor forward(const torch::Tensor& x) { return out->forward(torch::tanh(in->forward(x))); }
  std::shared_ptr<test::Column> in;
  std::shared_ptr<test::Row> out;
};

TEST(MeshParallel, ASnapshotIsOfItsStepWhileTrainingGoesOn) {
  std::vector<state::Image> images(4);
  std::vector<std::shared_ptr<state::Snapshot>> snapshots(4);
  run_mesh({2, 2}, [&](World& world, const Mesh& mesh, const Group* group) {
    Wide net(group);
    auto train = parallel(mesh, net, momentum({.lr = 0.1}));
    const auto x = torch::ones({4, 64}, torch::kFloat64) * (mesh.coordinate("data") + 1);
    const auto go = [&] { train.step([&] { return net.forward(x).pow(2).mean(); }); };
    for (int step = 0; step < 3; step++) go();
    const auto mine = static_cast<size_t>(world.rank());
    train.visit(images[mine]);
    const auto division = checkpoint::divide(train.owners(), checkpoint::Plan(train.contents()));
    snapshots[mine] = train.snapshot(division);
    EXPECT_EQ(snapshots[mine]->saved_bytes(), 0u);
    go();
    go();
    EXPECT_GT(snapshots[mine]->saved_bytes(), 0u);
  });
  state::Image whole = images[0], kept;
  for (size_t rank = 1; rank < 4; rank++) whole.add(images[rank]);
  for (const auto& snapshot : snapshots) {
    EXPECT_EQ(snapshot->about().layout, whole.about().layout);
    for (size_t part = 0; part < snapshot->parts().size(); part++) {
      std::vector<std::byte> bytes(snapshot->parts()[part].range.size());
      snapshot->read(part, 0, bytes);
      snapshot->place(part, 0, bytes, kept);
    }
    for (const std::string& vector : snapshot->contents().vectors())
      for (const state::Holding& holding : snapshot->contents().of(vector)) {
        std::vector<std::byte> bytes(holding.range.size());
        snapshot->read(vector, holding.range, bytes);
        EXPECT_EQ(bytes, whole.bytes_of(vector, holding.range)) << vector;
      }
  }
  for (const char* vector : {"parameters", "optimizer/momentum"}) {
    ASSERT_TRUE(whole.contents().of(vector).size() == kept.contents().of(vector).size()) << vector;
    for (const state::Holding& holding : whole.contents().of(vector))
      EXPECT_EQ(kept.bytes_of(vector, holding.range), whole.bytes_of(vector, holding.range)) << vector;
  }
}

TEST(MeshParallel, AllStopAfterTheSameUpdate) {
  for (const Grid& grid : {Grid{2, 2}, Grid{1, 3}})
    for (int asks = 0; asks < grid.ranks(); asks++)
      run_mesh(grid, [&](World& world, const Mesh& mesh, const Group* group) {
        DividedNet net(group);
        auto train = parallel(mesh, net, sgd({.lr = 0.01}));
        for (int64_t step = 0; step < 6; step++) {
          if (step == 3 && world.rank() == asks) train.request_stop();
          EXPECT_EQ(one_step(train, net, mesh, {}, step).stop, step >= 3) << "rank " << world.rank();
        }
      });
}

/// Of one rank's loss, or of one rank's part of a gradient.
TEST(MeshParallel, AllSeeTheSameNaN) {
  for (const bool of_loss : {true, false})
    for (int who = 0; who < 4; who++)
      run_mesh({2, 2}, [&](World& world, const Mesh& mesh, const Group* group) {
        DividedNet net(group);
        auto train = parallel(mesh, net, sgd({.lr = 0.01}), {.exchange = {.bucket_bytes = 512}});
        const auto [x, y] = batch_of(0);
        const auto step = [&, x = x, y = y](bool bad) {
          return train.step([&] {
            auto loss = loss_of(net, x, y);
            if (!bad || world.rank() != who) return loss;
            if (of_loss) return loss * std::nan("");
            // the loss stays a number, and one gradient does not
            return loss + torch::sqrt((net.in->weight * 0).sum());
          });
        };
        step(false);
        try {
          step(true);
          ADD_FAILURE() << "rank " << world.rank() << " went on";
        } catch (const NotFinite& error) {
          const std::string text = error.what();
          if (of_loss)
            EXPECT_NE(text.find(fmt::format("the loss became NaN on rank {} at update 2", who)), std::string::npos)
                << text;
          else
            EXPECT_NE(text.find("the gradient of 'in.weight' became NaN"), std::string::npos) << text;
        }
        EXPECT_TRUE(std::isfinite(step(false).loss));  // and may go on
      });
}

TEST(MeshParallel, AnUpdateWithNaNIsSkippedByAll) {
  for (const bool of_loss : {true, false})
    for (int who = 0; who < 4; who++) {
      std::vector<std::string> before(4), after(4);
      run_mesh({2, 2}, [&](World& world, const Mesh& mesh, const Group* group) {
        DividedNet net(group);
        auto train = parallel(mesh, net, momentum({.lr = 0.01}),
                              {.exchange = {.bucket_bytes = 512, .on_nan = exchange::OnNan::skip}});
        const auto [x, y] = batch_of(0);
        const auto step = [&, x = x, y = y](bool bad) {
          return train.step([&] {
            auto loss = loss_of(net, x, y);
            if (!bad || world.rank() != who) return loss;
            if (of_loss) return loss * std::nan("");
            return loss + torch::sqrt((net.head->bias * 0).sum());  // a tensor that all have
          });
        };
        step(false);
        before[static_cast<size_t>(world.rank())] = train.sha256();
        const Step bad = step(true);
        EXPECT_TRUE(bad.skipped && !bad.updated) << "rank " << world.rank();
        after[static_cast<size_t>(world.rank())] = train.sha256();
        EXPECT_TRUE(step(false).updated);
      });
      EXPECT_EQ(before, after);
    }
}

void expect_refused(const Grid& grid, const std::function<void(World&, const Mesh&, const Group*)>& body,
                    const std::string& words) {
  run_mesh(grid, [&](World& world, const Mesh& mesh, const Group* group) {
    try {
      body(world, mesh, group);
      ADD_FAILURE() << "rank " << world.rank() << " was not refused: " << words;
    } catch (const Error& error) {
      EXPECT_NE(std::string(error.what()).find(words), std::string::npos) << error.what();
    }
  });
}

struct Lone : torch::nn::Module, layers::Divided {
  explicit Lone(layers::Division its) : division(std::move(its)) {
    weight = register_parameter("weight", torch::ones({4, 2}, torch::kFloat64));
  }
  std::vector<layers::Division> divisions() const override { return {division}; }
  layers::Division division;
  torch::Tensor weight;
};

TEST(MeshParallel, WhatCannotBeIsRefused) {
  expect_refused(
      {2, 2},
      [](World& world, const Mesh& mesh, const Group* group) {
        DividedNet net(group);
        if (world.rank() == 3) net.register_parameter("more", torch::zeros({1}, torch::kFloat64));
        auto train = parallel(mesh, net, sgd({.lr = 0.1}));
      },
      "parameter 0: rank 0 has 'norm.weight f64[7]', rank 3 has 'more f64[1]'");
  expect_refused(
      {1, 2},
      [](World& world, const Mesh& mesh, const Group* group) {
        DividedNet net(group);
        auto train = parallel(mesh, net, sgd({.lr = world.rank() == 0 ? 0.1 : 0.2}));
      },
      "learning rate: rank 0 has '0.1', rank 1 has '0.2'");
  expect_refused(
      {1, 2},
      [](World& world, const Mesh& mesh, const Group*) {
        Lone net({"weight", world.rank(), world.rank(), 2});
        auto train = parallel(mesh, net, sgd({.lr = 0.1}));
      },
      "weight f64[8,2]");
  expect_refused(
      {1, 2},
      [](World&, const Mesh& mesh, const Group*) {
        Lone net({"weight", 0, 0, 2});
        auto train = parallel(mesh, net, sgd({.lr = 0.1}));
      },
      "parameter weight f64[4,2], part 0 of 2 of [8,2]: nobody has part 1");
  expect_refused(
      {1, 2},
      [](World&, const Mesh& mesh, const Group*) {
        Lone net({"wait", 0, 0, 2});
        auto train = parallel(mesh, net, sgd({.lr = 0.1}));
      },
      "'wait' is part 0 of 2 along dim 0 of a larger tensor, and has no such parameter");
  expect_refused(
      {2, 2},
      [](World&, const Mesh& mesh, const Group* group) {
        DividedNet net(group);
        auto train = parallel(mesh, net, sgd({.lr = 0.1}), {.sync = Sync::local_for(3)});
      },
      "on a mesh of data 2 × tensor 2 ranks hold parts of one model");
  expect_refused(
      {2, 2},
      [](World&, const Mesh& mesh, const Group* group) {
        DividedNet net(group);
        auto train = parallel(mesh.group("data"), net, sgd({.lr = 0.1}));
      },
      "its other parts are on other ranks. Give parallel() the mesh");
}

/// Freezing differs between ranks with parts of one model: found, and named.
TEST(MeshParallel, FreezingOnOneRankIsNamed) {
  expect_refused(
      {1, 2},
      [](World& world, const Mesh& mesh, const Group* group) {
        DividedNet net(group);
        auto train = parallel(mesh, net, sgd({.lr = 0.1}));
        if (world.rank() == 1) net.head->bias.requires_grad_(false);
        one_step(train, net, mesh, {}, 0);
      },
      "requires_grad of head.bias: rank 0 has 'true', rank 1 has 'false (frozen)'");
}

TEST(MeshParallel, AStateOfAnotherModelChangesNothingAnywhere) {
  const Folder folder;
  run_mesh({1, 2}, [&](World&, const Mesh& mesh, const Group* group) {
    DividedNet net(group);
    auto train = parallel(mesh, net, sgd({.lr = 0.1}));
    train.save_state(folder.path);
  });
  run_mesh({2, 2}, [&](World&, const Mesh& mesh, const Group* group) {
    Wide net(group);
    auto train = parallel(mesh, net, sgd({.lr = 0.1}));
    const std::string before = train.sha256();
    EXPECT_THROW(train.load_state(folder.path), InvalidArgument);
    EXPECT_EQ(train.sha256(), before);
  });
}

/// A rank whose source lacks something stops those with other parts, too.
TEST(MeshParallel, OneRankThatCannotRestoreStopsAll) {
  std::vector<state::Image> shown(4);
  run_mesh({2, 2}, [&](World& world, const Mesh& mesh, const Group* group) {
    DividedNet net(group);
    auto train = parallel(mesh, net, momentum({.lr = 0.1}));
    train.visit(shown[static_cast<size_t>(world.rank())]);
  });
  state::Image whole = shown[0];
  for (size_t rank = 1; rank < 4; rank++) whole.add(shown[rank]);
  run_mesh({2, 2}, [&](World& world, const Mesh& mesh, const Group* group) {
    DividedNet net(group, 6);
    auto train = parallel(mesh, net, momentum({.lr = 0.1}));
    const std::string before = train.sha256();
    state::Image mine = world.rank() == 2 ? shown[3] : whole;  // the other part
    if (world.rank() == 2)
      EXPECT_THROW(train.restore(mine), InvalidArgument);
    else
      EXPECT_THROW(train.restore(mine), Mismatch);
    EXPECT_EQ(train.sha256(), before);
    EXPECT_EQ(train.restore(whole), "");
    EXPECT_NE(train.sha256(), before);
  });
}

/// Every rank with the same data coordinate has the same samples.
TEST(MeshParallel, RanksOfAReplicaHaveTheSameSamples) {
  std::vector<std::vector<double>> sums(6);
  run_mesh({2, 3}, [&](World& world, const Mesh& mesh, const Group* group) {
    const auto sets = data::open(world.local(), "synthetic:200");
    DividedNet net(group);
    auto train = parallel(mesh, net, sgd({.lr = 0.01}));
    data::Feed feed(train, sets.train, {.batch = 40, .dtype = torch::kFloat64});
    for (auto& batch : feed.epoch(0)) {
      sums[static_cast<size_t>(world.rank())].push_back(batch.x.sum().item<double>());
      const auto x = batch.x.flatten(1).narrow(1, 300, DividedNet::kIn);
      train.step(batch, [&] { return net.forward(x).pow(2).mean(); });
    }
  });
  EXPECT_EQ(sums[0].size(), 5u);
  for (size_t rank : {1u, 2u}) EXPECT_EQ(sums[rank], sums[0]);
  for (size_t rank : {4u, 5u}) EXPECT_EQ(sums[rank], sums[3]);
  EXPECT_NE(sums[0], sums[3]);
}

/// Buffers are alike on the ranks of a replica, and averaged over replicas.
TEST(MeshParallel, BuffersAreAveragedOverReplicas) {
  run_mesh({2, 2}, [&](World&, const Mesh& mesh, const Group* group) {
    DividedNet net(group);
    auto train = parallel(mesh, net, sgd({.lr = 0.01}));
    net.seen.fill_(1 + 2 * mesh.coordinate("data"));
    train.settled([&] { EXPECT_EQ(net.seen[0].item<double>(), 2); });
  });
}

/// By hand, each part on one rank that has it; what is whole alike everywhere.
TEST(MeshParallel, ParametersAreWrittenPartByPart) {
  for (const Sync& sync : {Sync(Sync::shared), Sync(Sync::allreduce)}) {
    std::vector<std::string> hashes(4);
    run_mesh({2, 2}, [&](World& world, const Mesh& mesh, const Group* group) {
      DividedNet net(group);
      auto train = parallel(mesh, net, sgd({.lr = 0.01}), {.sync = sync});
      train.exclusive([&] {
        net.head->bias.fill_(3);
        net.in->bias.fill_(1 + mesh.coordinate("tensor"));
      });
      EXPECT_EQ(net.head->bias[0].item<double>(), 3);
      EXPECT_EQ(net.in->bias[0].item<double>(), 1 + mesh.coordinate("tensor"));
      hashes[static_cast<size_t>(world.rank())] = train.sha256();
    });
    EXPECT_EQ(hashes, std::vector<std::string>(4, hashes[0]));
  }
}

/// What lies in shared memory is a part, as its ranks have it.
TEST(MeshParallel, GoesOnWithWhatIsKeptInSharedMemory) {
  run_mesh({2, 2}, [&](World& world, const Mesh& mesh, const Group* group) {
    DividedNet net(group), other(group, 8);
    const Recipe recipe{.optimizer = momentum({.lr = 0.02})};
    auto train = parallel(mesh, net, recipe.optimizer, recipe.options());
    for (int64_t step = 0; step < 3; step++) one_step(train, net, mesh, recipe, step);
    std::string mine;
    for (const std::string& name : exchange::KeptState::models(*world.local().memory()))
      if (exchange::KeptState(world.local().memory(), name).fingerprint() ==
          train.exchange().flat().layout().fingerprint())
        mine = name;
    world.comm().barrier("found");
    auto again = parallel(mesh, other, recipe.optimizer, recipe.options());
    exchange::KeptState kept(world.local().memory(), mine);
    ASSERT_TRUE(kept.whole());
    EXPECT_EQ(again.restore(kept), "");
    EXPECT_EQ(again.sha256(), train.sha256());
    const double next = one_step(train, net, mesh, recipe, 3).loss;
    EXPECT_EQ(one_step(again, other, mesh, recipe, 3).loss, next);
    EXPECT_EQ(again.sha256(), train.sha256());
  });
}

TEST(MeshParallel, AMeshWithoutAnAxisForDataIsOneReplica) {
  const Reference reference = alone({.optimizer = momentum({.lr = 0.02})});
  test::run_ranks(3, [&](World& world) {
    const Mesh mesh = world.mesh({{"tensor", 3}});
    DividedNet net(&mesh.group("tensor"));
    auto train = parallel(mesh, net, momentum({.lr = 0.02}));
    EXPECT_EQ(train.group().size(), 1);
    EXPECT_EQ(train.whole().size(), 3);
    for (int64_t step = 0; step < kSteps; step++) {
      const auto [x, y] = batch_of(step);
      train.step([&, x = x, y = y] { return loss_of(net, x, y); });
    }
    expect_parts_of(reference, net, "tensor 3 alone");
  });
}

TEST(MeshParallel, AUsersOwnOptimizerHasTheMeanGradients) {
  const Reference reference = alone({.optimizer = sgd({.lr = 0.05}), .clip = 0.7});
  run_mesh({2, 2}, [&](World&, const Mesh& mesh, const Group* group) {
    DividedNet net(group);
    auto train = parallel(mesh, net, {.sync = Sync::allreduce, .clip = 0.7});
    torch::optim::SGD optimizer(net.parameters(), 0.05);
    for (int64_t step = 0; step < kSteps; step++) {
      one_step(train, net, mesh, {}, step);
      optimizer.step();
    }
    expect_parts_of(reference, net, "an optimizer of the user's");
  });
}

TEST(MeshParallel, ThreeAxesHaveTheirGroups) {
  test::run_ranks(8, [&](World& world) {
    const Mesh mesh = world.mesh({{"data", 2}, {"pipeline", 2}, {"tensor", 2}});
    EXPECT_EQ(mesh.describe(), "data 2 × pipeline 2 × tensor 2");
    EXPECT_TRUE(mesh.has("tensor"));
    EXPECT_FALSE(mesh.has("tenser"));
    EXPECT_EQ(mesh.whole().size(), 8);
    EXPECT_EQ(mesh.whole().rank(), world.rank());
    const int d = world.rank() / 4, p = world.rank() / 2 % 2, t = world.rank() % 2;
    EXPECT_EQ(mesh.across("data").ranks(), (std::vector<int>{4 * d, 4 * d + 1, 4 * d + 2, 4 * d + 3}));
    EXPECT_EQ(mesh.across("pipeline").ranks(), (std::vector<int>{2 * p, 2 * p + 1, 4 + 2 * p, 5 + 2 * p}));
    EXPECT_EQ(mesh.across("tensor").ranks(), (std::vector<int>{t, 2 + t, 4 + t, 6 + t}));
    const Mesh flat = world.mesh({{"data", 4}, {"tensor", 2}});
    EXPECT_EQ(flat.across("data").ranks(), flat.group("tensor").ranks());
    EXPECT_EQ(flat.across("tensor").ranks(), flat.group("data").ranks());
    const Mesh one = world.mesh({{"data", 8}});
    EXPECT_EQ(one.across("data").ranks(), std::vector<int>{world.rank()});
  });
}

}  // namespace
}  // namespace trireme
