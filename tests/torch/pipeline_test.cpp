// label: multiproc
// Models in stages, on every mesh and with every schedule, against the ordinary model in one process with libtorch's
// own optimizer.
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <map>
#include <mutex>

#include <trireme/trireme.h>

#include "ranks.h"

namespace trireme {
namespace {

namespace fs = std::filesystem;

constexpr int64_t kSteps = 20, kBatch = 12, kContext = 6, kVocabulary = 24;
std::mutex random_numbers;  // ranks are threads here, and libtorch's are the process's

struct Grid {
  int data = 1, pipeline = 1, tensor = 1;
  int ranks() const { return data * pipeline * tensor; }
  std::string name() const { return fmt::format("{} x {} x {}", data, pipeline, tensor); }
  Mesh mesh(World& world) const { return world.mesh({{"data", data}, {"pipeline", pipeline}, {"tensor", tensor}}); }
};

template <class Options>
Options small() {
  return {.layers = 6, .width = 24, .heads = 12, .context = kContext, .vocabulary = kVocabulary};
}

/// Eight sections, with one embedding that is the output layer too.
std::shared_ptr<models::LanguageModel> make(const std::string& model, const layers::TensorGroup& ranks = {}) {
  const std::lock_guard lock(random_numbers);
  torch::manual_seed(4);
  auto net = model == "gpt" ? models::gpt(ranks, small<models::GptOptions>())
                            : models::bert(ranks, small<models::BertOptions>());
  net->to(torch::kFloat64);
  return net;
}

std::pair<torch::Tensor, torch::Tensor> batch_of(int64_t step) {
  auto generator = at::detail::createCPUGenerator(static_cast<uint64_t>(1000 + step));  // others load their own
  const auto tokens = torch::randint(0, kVocabulary, {kBatch, kContext + 1}, generator, torch::kInt64);
  return {tokens.narrow(1, 0, kContext), tokens.narrow(1, 1, kContext)};
}

using Tensors = std::map<std::string, torch::Tensor>;

struct Reference {
  Tensors parameters;
  std::vector<double> losses;
};

constexpr double kEpsilon = 1e-6;  // of Adam: see mesh_gpt_test

/// libtorch alone, on whole batches.
Reference alone(const std::string& model, double clip) {
  Reference result;
  const auto net = make(model);
  torch::optim::AdamW optimizer(net->parameters(), torch::optim::AdamWOptions(0.01).weight_decay(0.1).eps(kEpsilon));
  for (int64_t step = 0; step < kSteps; step++) {
    const auto [x, y] = batch_of(step);
    optimizer.zero_grad();
    const auto loss = net->loss(x, y);
    loss.backward();
    result.losses.push_back(loss.item<double>());
    if (clip > 0) torch::nn::utils::clip_grad_norm_(net->parameters(), clip);
    optimizer.step();
  }
  for (const auto& item : net->named_parameters()) result.parameters[item.key()] = item.value().detach().clone();
  return result;
}

const Reference& reference(const std::string& model, double clip) {
  static std::map<std::pair<std::string, double>, Reference> kept;
  const auto found = kept.find({model, clip});
  return found != kept.end() ? found->second : kept.emplace(std::pair(model, clip), alone(model, clip)).first->second;
}

struct Case {
  Grid grid;
  std::string schedule = "1f1b";
  int micro = 4, zero = 0;
  double clip = 0;
  std::string model = "gpt";
  std::string name() const {
    return fmt::format("{}, {}, {}, {} micro-batches, zero {}, clip {}", model, grid.name(), schedule, micro, zero,
                       clip);
  }
};

int chunks_of(const std::string& schedule) { return stages::parse_schedule(schedule).chunks; }

/// This replica's samples.
std::pair<torch::Tensor, torch::Tensor> share_of(const Mesh& mesh, int64_t step) {
  const auto [x, y] = batch_of(step);
  const int64_t share = kBatch / mesh.size("data"), first = share * mesh.coordinate("data");
  return {x.narrow(0, first, share), y.narrow(0, first, share)};
}

struct Trained {
  std::shared_ptr<models::LanguageModel> net;
  Pipeline pipe;
  Parallel train;
  Trained(const Mesh& mesh, const Case& c)
      : net(make(c.model, mesh)),
        pipe(pipeline(mesh, layers::cut(net, c.grid.pipeline * chunks_of(c.schedule)),
                      {.micro = c.micro, .schedule = stages::parse_schedule(c.schedule)})),
        train(mesh, pipe, adamw({.lr = 0.01, .epsilon = kEpsilon, .weight_decay = 0.1}),
              {.exchange = {.bucket_bytes = 2048, .clip = c.clip, .zero = c.zero}}) {}
  Step step(const Mesh& mesh, int64_t number) {
    const auto [x, y] = share_of(mesh, number);
    return train.step(1.0 / mesh.size("data"), x, y, [&](const torch::Tensor& last, const torch::Tensor& targets) {
      return net->loss_from(last, targets);
    });
  }
};

void expect_parity(const Case& c) {
  const Reference& wanted = reference(c.model, c.clip);
  const fs::path folder = fs::temp_directory_path() / fmt::format("trireme-pipeline-{}", getpid());
  test::run_ranks(c.grid.ranks(), [&](World& world) {
    const Mesh mesh = c.grid.mesh(world);
    const Group one = world.split(world.rank());
    const auto ordinary = make(c.model);
    {
      Trained model(mesh, c);
      auto single = parallel(one, *ordinary, adamw({.lr = 0.01, .epsilon = kEpsilon, .weight_decay = 0.1}));
      EXPECT_EQ(model.train.sha256(), single.sha256()) << c.name() << " begins with other numbers";
      for (int64_t step = 0; step < kSteps; step++) {
        const Step done = model.step(mesh, step);
        ASSERT_TRUE(done.updated);
        ASSERT_NEAR(done.loss, wanted.losses[static_cast<size_t>(step)], 1e-9) << c.name() << ", step " << step;
      }
      single.load_state(model.train.save_state(folder));  // of whichever mesh it was saved
      EXPECT_EQ(model.train.sha256(), single.sha256()) << c.name();
    }
    for (const auto& item : ordinary->named_parameters())
      EXPECT_LT((item.value() - wanted.parameters.at(item.key())).abs().max().item<double>(), 1e-9)
          << c.name() << ", " << item.key();
    world.comm().barrier("end");
  });
  fs::remove_all(folder);
}

/// All ways to write a number as a product of three.
std::vector<Grid> grids_of(int ranks) {
  std::vector<Grid> grids;
  for (int data = 1; data <= ranks; data++)
    for (int pipeline = 1; ranks % data == 0 && pipeline <= ranks / data; pipeline++)
      if (ranks / data % pipeline == 0) grids.push_back({data, pipeline, ranks / data / pipeline});
  return grids;
}

bool fits(const Grid& grid, const std::string& schedule) {
  return 12 % grid.tensor == 0 && kBatch % grid.data == 0 && grid.pipeline * chunks_of(schedule) <= 8;
}

/// All of them by hand (TRIREME_LONG=1), two on each mesh otherwise.
std::vector<const char*> schedules_for(size_t number) {
  const std::vector<const char*> others = {"gpipe", "1f1b", "interleaved:2"};
  if (std::getenv("TRIREME_LONG") != nullptr) return {"gpipe", "1f1b", "interleaved:2", "zero-bubble"};
  return {others[number % others.size()], "zero-bubble"};
}

class Factorisations : public testing::TestWithParam<int> {};

TEST_P(Factorisations, EndLikeOneProcess) {
  const std::vector<Grid> grids = grids_of(GetParam());
  for (size_t number = 0; number < grids.size(); number++)
    for (const char* schedule : schedules_for(number))
      if (fits(grids[number], schedule)) expect_parity({.grid = grids[number], .schedule = schedule});
}
INSTANTIATE_TEST_SUITE_P(OfRanks, Factorisations, testing::Values(1, 2, 4, 6, 8));

TEST(Pipeline, ClipsByTheNormOfAllStages) {
  for (const Grid& grid : {Grid{1, 2, 1}, Grid{1, 4, 1}, Grid{1, 2, 2}, Grid{2, 2, 2}})
    for (const char* schedule : {"1f1b", "zero-bubble"})
      expect_parity({.grid = grid, .schedule = schedule, .clip = 0.5});
}

/// A run that changes its mesh in the middle ends like one that does not: parameters, optimizer state and step counts.
TEST(Pipeline, CheckpointsOfAnyMeshGoOnInAnyOther) {
  const std::vector<Case> layouts = {{.grid = {1, 1, 1}},
                                     {.grid = {2, 1, 1}},
                                     {.grid = {1, 2, 1}},
                                     {.grid = {1, 1, 2}},
                                     {.grid = {1, 4, 1}, .schedule = "interleaved:2"},
                                     {.grid = {2, 2, 1}, .schedule = "gpipe"},
                                     {.grid = {1, 2, 2}, .schedule = "zero-bubble"}};
  const Reference& wanted = reference("gpt", 0);
  const fs::path folder = fs::temp_directory_path() / fmt::format("trireme-pipeline-meshes-{}", getpid());
  const auto go_on = [&](const Case& c, const std::string& from, const std::string& to, int64_t first, int64_t steps) {
    test::run_ranks(c.grid.ranks(), [&](World& world) {
      const Mesh mesh = c.grid.mesh(world);
      Trained model(mesh, c);
      if (!from.empty()) EXPECT_EQ(model.train.load_state(folder / from), first);
      for (int64_t step = first; step < first + steps; step++)
        ASSERT_NEAR(model.step(mesh, step).loss, wanted.losses[static_cast<size_t>(step)], 1e-9)
            << c.name() << " after " << from << ", step " << step;
      if (!to.empty()) model.train.save_state(folder / to);
    });
  };
  for (size_t i = 0; i < layouts.size(); i++) go_on(layouts[i], "", std::to_string(i), 0, 5);
  for (size_t i = 0; i < layouts.size(); i++)
    for (const Case& other : layouts) go_on(other, std::to_string(i), "", 5, 5);
  fs::remove_all(folder);
}

TEST(Pipeline, OtherModels) {
  for (const Grid& grid : {Grid{1, 2, 1}, Grid{2, 2, 1}, Grid{1, 4, 2}})
    for (const char* schedule : {"interleaved:2", "zero-bubble"})
      expect_parity({.grid = grid, .schedule = schedule, .clip = 0.5, .model = "bert"});
}

}  // namespace
}  // namespace trireme
