// label: multiproc
// Models in stages, on every mesh and with every schedule, against the ordinary model in one process with libtorch's
// own optimizer.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <limits>
#include <map>
#include <mutex>

#include <trireme/trireme.h>

#include "../core/cluster/groups.h"
#include "ranks.h"

namespace trireme {
namespace {

namespace fs = std::filesystem;

// Every degree up to 8 divides the batch, the heads and the vocabulary.
constexpr int64_t kSteps = 20, kBatch = 24, kHeads = 24, kContext = 4, kVocabulary = 24;
std::mutex random_numbers;  // ranks are threads here, and libtorch's are the process's

struct Grid {
  int data = 1, pipeline = 1, tensor = 1;
  int ranks() const { return data * pipeline * tensor; }
  std::string name() const { return fmt::format("{} x {} x {}", data, pipeline, tensor); }
  Mesh mesh(const Group& all) const { return {all, {{"data", data}, {"pipeline", pipeline}, {"tensor", tensor}}}; }
};

/// One embedding is the output layer too.
struct ModelSpec {
  std::string name = "gpt";
  int64_t layers = 6;  // and two sections more: the embedding, and the head
  bool recompute = false;
  auto operator<=>(const ModelSpec&) const = default;
};

template <class Options>
Options small(const ModelSpec& model) {
  return {.layers = model.layers,
          .width = 24,
          .heads = kHeads,
          .context = kContext,
          .vocabulary = kVocabulary,
          .recompute = model.recompute};
}

std::shared_ptr<models::LanguageModel> make(const ModelSpec& model, const layers::TensorGroup& ranks = {}) {
  const std::lock_guard lock(random_numbers);
  torch::manual_seed(4);
  auto net = model.name == "gpt" ? models::gpt(ranks, small<models::GptOptions>(model))
                                 : models::bert(ranks, small<models::BertOptions>(model));
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
  std::vector<double> norms;
  int64_t clipped(double clip) const {
    return std::count_if(norms.begin(), norms.end(), [&](double norm) { return norm > clip; });
  }
};

constexpr double kEpsilon = 1e-6;  // of Adam: see mesh_gpt_test

constexpr double kRate = 0.01;
const space::ScheduleOptions kDecay = {.kind = RateSchedule::cosine, .warmup = 4, .total = kSteps, .floor = 0.1};

/// What kDecay is to make of kRate: up in 4 steps, then down along a half wave to a tenth.
double decayed(int64_t step) {
  if (step < 4) return kRate * static_cast<double>(step + 1) / 4;
  const double progress = static_cast<double>(step - 4) / static_cast<double>(kSteps - 4);
  return kRate * (0.1 + 0.9 * 0.5 * (1 + std::cos(M_PI * progress)));
}

/// libtorch alone, on whole batches.
Reference alone(const ModelSpec& model, double clip, int64_t steps, bool decays) {
  Reference result;
  const auto net = make(model);
  torch::optim::AdamW optimizer(net->parameters(), torch::optim::AdamWOptions(kRate).weight_decay(0.1).eps(kEpsilon));
  for (int64_t step = 0; step < steps; step++) {
    const auto [x, y] = batch_of(step);
    optimizer.zero_grad();
    const auto loss = net->loss(x, y);
    loss.backward();
    result.losses.push_back(loss.item<double>());
    const double limit = clip > 0 ? clip : std::numeric_limits<double>::infinity();
    result.norms.push_back(torch::nn::utils::clip_grad_norm_(net->parameters(), limit));
    if (decays) dynamic_cast<torch::optim::AdamWOptions&>(optimizer.param_groups()[0].options()).lr(decayed(step));
    optimizer.step();
  }
  for (const auto& item : net->named_parameters()) result.parameters[item.key()] = item.value().detach().clone();
  return result;
}

const Reference& reference(ModelSpec model, double clip, int64_t steps = kSteps, bool decays = false) {
  static std::map<std::tuple<ModelSpec, double, int64_t, bool>, Reference> kept;
  model.recompute = false;  // which is to make no difference
  const std::tuple key(model, clip, steps, decays);
  const auto found = kept.find(key);
  return found != kept.end() ? found->second : kept.emplace(key, alone(model, clip, steps, decays)).first->second;
}

struct Case {
  Grid grid;
  std::string schedule = "1f1b";
  int micro = 4, zero = 0;
  double clip = 0;
  ModelSpec model{};
  exchange::Ahead ahead = exchange::Ahead::idle;
  bool machines = false;  // a replica's ranks are on one machine, each on another; otherwise all on one
  int64_t steps = kSteps;
  bool decays = false;  // the rate
  std::string name() const {
    return fmt::format("{}, {}, {}, {} micro-batches, zero {}, clip {}, ahead {}", model.name, grid.name(), schedule,
                       micro, zero, clip, static_cast<int>(ahead));
  }
};

/// Runs `body` on every rank.
void on_ranks(const Case& c, const std::function<void(Group&)>& body) {
  if (!c.machines) return test::run_ranks(c.grid.ranks(), [&](World& world) { body(world.group()); });
  std::vector<int> machine_of;
  for (int rank = 0; rank < c.grid.ranks(); rank++) machine_of.push_back(rank / (c.grid.pipeline * c.grid.tensor));
  const auto run = [&](Group& all, cluster::Site&) {
    at::set_num_threads(1);
    body(all);
  };
  for (const std::exception_ptr& error : tests::run_world(machine_of, run, Seconds(60)))
    if (error) std::rethrow_exception(error);
}

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
        train(mesh, pipe, adamw({.lr = kRate, .epsilon = kEpsilon, .weight_decay = 0.1}),
              {.exchange = {.bucket_bytes = 2048, .clip = c.clip, .zero = c.zero, .ahead = c.ahead},
               .schedule = c.decays ? kDecay : space::ScheduleOptions{}}) {}
  Step step(const Mesh& mesh, int64_t number) {
    const auto [x, y] = share_of(mesh, number);
    return train.step(1.0 / mesh.size("data"), x, y, [&](const torch::Tensor& last, const torch::Tensor& targets) {
      return net->loss_from(last, targets);
    });
  }
};

/// Updates of all ranks that began before the norm was known, and those of them that were wrong.
struct Guesses {
  double ahead = 0, taken_back = 0;
};

Guesses expect_parity(const Case& c) {
  Guesses guesses;
  const Reference& wanted = reference(c.model, c.clip, c.steps, c.decays);
  const fs::path folder = fs::temp_directory_path() / fmt::format("trireme-pipeline-{}", getpid());
  on_ranks(c, [&](Group& all) {
    const Mesh mesh = c.grid.mesh(all);
    const Group one = all.split(all.rank());
    const auto ordinary = make(c.model);
    {
      Trained model(mesh, c);
      auto single = parallel(one, *ordinary, adamw({.lr = kRate, .epsilon = kEpsilon, .weight_decay = 0.1}));
      EXPECT_EQ(model.train.sha256(), single.sha256()) << c.name() << " begins with other numbers";
      for (int64_t step = 0; step < c.steps; step++) {
        const Step done = model.step(mesh, step);
        ASSERT_TRUE(done.updated);
        ASSERT_NEAR(done.loss, wanted.losses[static_cast<size_t>(step)], 1e-9) << c.name() << ", step " << step;
      }
      single.load_state(model.train.save_state(folder));  // of whichever mesh it was saved
      EXPECT_EQ(model.train.sha256(), single.sha256()) << c.name();
      const metrics::Snapshot counted = all.registry().snapshot();
      const std::lock_guard lock(random_numbers);
      guesses.ahead += counted.total("updates_ahead").value;
      guesses.taken_back += counted.total("updates_taken_back").value;
    }
    for (const auto& item : ordinary->named_parameters())
      EXPECT_LT((item.value() - wanted.parameters.at(item.key())).abs().max().item<double>(), 1e-9)
          << c.name() << ", " << item.key();
    all.comm().barrier("end");
  });
  fs::remove_all(folder);
  return guesses;
}

/// All ways to write a number as a product of three.
std::vector<Grid> grids_of(int ranks) {
  std::vector<Grid> grids;
  for (int data = 1; data <= ranks; data++)
    for (int pipeline = 1; ranks % data == 0 && pipeline <= ranks / data; pipeline++)
      if (ranks / data % pipeline == 0) grids.push_back({data, pipeline, ranks / data / pipeline});
  return grids;
}

/// With as many layers as it takes.
Case case_of(const Grid& grid, const std::string& schedule) {
  const int64_t parts = grid.pipeline * chunks_of(schedule);
  return {.grid = grid, .schedule = schedule, .model = {.layers = std::max<int64_t>(6, parts - 2)}};
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
    for (const char* schedule : schedules_for(number)) expect_parity(case_of(grids[number], schedule));
}
INSTANTIATE_TEST_SUITE_P(OfRanks, Factorisations, testing::Values(1, 2, 4, 6, 8));

/// ZeRO 1 divides the optimizer's state among machines: here each replica has one. All meshes and schedules by hand
/// (TRIREME_LONG=1); otherwise a few steps on meshes with two axes or three.
TEST_P(Factorisations, EndLikeOneProcessWithZero) {
  const std::vector<Grid> grids = grids_of(GetParam());
  const bool all = std::getenv("TRIREME_LONG") != nullptr;
  for (size_t number = 0; number < grids.size(); number++) {
    const Grid& grid = grids[number];
    if (!all && GetParam() > 2 && (grid.data == 1 || grid.pipeline == 1)) continue;
    for (const char* schedule : all ? schedules_for(number) : std::vector{number % 2 == 0 ? "1f1b" : "zero-bubble"}) {
      Case c = case_of(grid, schedule);
      c.zero = 1, c.machines = true, c.steps = all ? kSteps : 5;
      expect_parity(c);
    }
  }
}

TEST(Pipeline, ClipsByTheNormOfAllStages) {
  for (const Grid& grid : {Grid{1, 2, 1}, Grid{1, 4, 1}, Grid{1, 2, 2}, Grid{2, 2, 2}})
    for (const char* schedule : {"1f1b", "zero-bubble"})
      expect_parity({.grid = grid, .schedule = schedule, .clip = 0.5});
}

/// What is wrong is taken back, and made again. In each of these runs some steps are clipped, and others are not.
TEST(Pipeline, UpdatesBeforeTheNormIsKnown) {
  std::vector<double> norms = reference({}, 0).norms;
  std::sort(norms.begin(), norms.end());
  const double clip = norms[norms.size() / 2];
  ASSERT_GT(reference({}, clip).clipped(clip), 3);
  ASSERT_LT(reference({}, clip).clipped(clip), kSteps - 3);
  for (const Grid& grid : {Grid{1, 2, 1}, Grid{1, 4, 1}, Grid{2, 2, 1}, Grid{1, 2, 2}})
    for (const char* schedule : {"1f1b", "zero-bubble"}) {
      const Case c{.grid = grid, .schedule = schedule, .clip = clip, .ahead = exchange::Ahead::always};
      const Guesses guesses = expect_parity(c);
      EXPECT_GT(guesses.taken_back, 0) << c.name();
      EXPECT_GT(guesses.ahead, guesses.taken_back) << c.name();
    }
  EXPECT_EQ(expect_parity({.grid = {1, 2, 1}, .clip = clip, .ahead = exchange::Ahead::never}).ahead, 0);
  EXPECT_EQ(expect_parity({.grid = {2, 1, 2}, .clip = clip, .ahead = exchange::Ahead::always}).ahead, 0)
      << "there is one stage";
}

/// Warm-up and decay count updates, not micro-batches.
TEST(Pipeline, RatesThatChange) {
  for (const Grid& grid : {Grid{1, 2, 1}, Grid{2, 2, 1}, Grid{1, 4, 2}})
    for (const char* schedule : {"interleaved:2", "zero-bubble"})
      expect_parity({.grid = grid, .schedule = schedule, .decays = true});
}

TEST(Pipeline, BlocksThatComputeTwice) {
  for (const Grid& grid : {Grid{1, 2, 1}, Grid{2, 2, 1}, Grid{1, 2, 2}})
    for (const char* schedule : {"interleaved:2", "zero-bubble"})
      expect_parity({.grid = grid, .schedule = schedule, .clip = 0.5, .model = {.recompute = true}});
}

/// A run that changes its mesh in the middle ends like one that does not: parameters, optimizer state and step counts.
TEST(Pipeline, CheckpointsOfAnyMeshGoOnInAnyOther) {
  const std::vector<Case> layouts = {{.grid = {1, 1, 1}},
                                     {.grid = {2, 1, 1}},
                                     {.grid = {1, 2, 1}},
                                     {.grid = {1, 1, 2}},
                                     {.grid = {1, 4, 1}, .schedule = "interleaved:2"},
                                     {.grid = {2, 2, 1}, .schedule = "gpipe"},
                                     {.grid = {1, 2, 2}, .schedule = "zero-bubble"},
                                     {.grid = {2, 2, 1}, .schedule = "zero-bubble", .zero = 1, .machines = true},
                                     {.grid = {2, 2, 1}, .zero = 2, .machines = true}};
  const Reference& wanted = reference({}, 0);
  const fs::path folder = fs::temp_directory_path() / fmt::format("trireme-pipeline-meshes-{}", getpid());
  const auto go_on = [&](const Case& c, const std::string& from, const std::string& to, int64_t first, int64_t steps) {
    on_ranks(c, [&](Group& all) {
      const Mesh mesh = c.grid.mesh(all);
      Trained model(mesh, c);
      if (!from.empty()) {
        EXPECT_EQ(model.train.load_state(folder / from), first);
      }
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

/// Fewer steps: with heads of width 1 what BERT's sums are rounded to grows tenfold every few steps.
TEST(Pipeline, OtherModels) {
  for (const Grid& grid : {Grid{1, 2, 1}, Grid{2, 2, 1}, Grid{1, 4, 2}})
    for (const char* schedule : {"interleaved:2", "zero-bubble"})
      expect_parity({.grid = grid, .schedule = schedule, .clip = 0.5, .model = {"bert"}, .steps = 10});
}

}  // namespace
}  // namespace trireme
