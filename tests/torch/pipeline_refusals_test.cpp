// label: multiproc
// What a pipeline refuses before anything starts, and what all of its ranks have to have alike: places, schedule, sizes
// of batches.
#include <array>
#include <chrono>
#include <thread>

#include "pipeline_kinds.h"

namespace trireme::tests {
namespace {

TEST(BadPipeline, IsRefusedInASentence) {
  const Kind kind = skipping();
  const auto make = [&](int parts, const PipelineOptions& options, const ParallelOptions& parallel_options = {}) {
    return on_two([&](const Mesh& mesh, int) {
      const auto net = kind();
      auto pipe = pipeline(mesh, cut(net, parts), options);
      auto train = parallel(mesh, pipe, sgd({.lr = 0.1}), parallel_options);
      train.step([] { return torch::Tensor(); });
    });
  };
  expect_said(make(3, {}), "2 stages with 1 chunk each need a model in 2 parts, and this one is cut into 3");
  expect_said(make(5, {}), "4 sections");
  expect_said(make(2, {.micro = -1}), "1 micro-batch or more");
  expect_said(make(2, {.schedule = Schedule::interleaved}), "need a model in 4 parts");
  expect_said(make(2, {}, {.accumulate = 2}), "give it 16 of them (micro) instead of accumulate 2");
  expect_said(make(2, {}, {.exchange = {.zero = 3}}), "use zero 0, 1 or 2");
  expect_said(make(2, {}, {.sync_batch_norm = true}), "leave sync_batch_norm out");
  expect_said(make(2, {}), "a pipeline divides the batch itself");
}

TEST(BadPipeline, RanksThatDiffer) {
  const Kind kind = skipping();
  const auto differ = [&](const std::function<Pipeline(const Mesh&, int)>& make) {
    return on_two([&](const Mesh& mesh, int stage) { make(mesh, stage); });
  };
  expect_said(differ([&](const Mesh& mesh, int stage) { return pipeline(mesh, cut(kind(), 2), {.micro = 4 + stage}); }),
              "micro-batches of a pipeline: rank 0 has '4', rank 1 has '5'");
  expect_said(differ([&](const Mesh& mesh, int stage) {
                return pipeline(mesh, cut(kind(), 2, {.points = {stage == 0 ? "second" : "third"}}), {.micro = 4});
              }),
              "sections of part 0: rank 0 has 'first', rank 1 has 'first second'");
  expect_said(differ([&](const Mesh& mesh, int stage) {
                return pipeline(mesh, cut(kind(), 2),
                                {.micro = 4, .schedule = stage == 0 ? Schedule::gpipe : Schedule::zero_bubble});
              }),
              "schedule: rank 0 has 'gpipe', rank 1 has 'zero-bubble'");
}

/// Both have the same parameters in the same parts; nobody would run the layer in the middle, or the buffers that
/// belong to it.
TEST(BadPipeline, RanksThatCutBesideALayerWithoutParameters) {
  namespace nn = torch::nn;
  const auto net = [] { return nn::Sequential(nn::Linear(4, 4), nn::Tanh(), nn::Linear(4, 4)); };
  expect_said(
      on_two([&](const Mesh& mesh, int stage) { pipeline(mesh, cut(net(), 2, {.points = {stage == 0 ? "1" : "2"}})); }),
      "sections of part 0: rank 0 has '0', rank 1 has '0 1'");
  const auto norm = [](bool buffers) {
    auto whole = std::make_shared<nn::Module>("Whole");
    whole->register_module("first", nn::Linear(4, 4));
    whole->register_module("second", nn::Linear(4, 4));
    whole->register_buffer("mean", torch::zeros({4}));
    std::vector<layers::Section> sections;
    for (const char* name : {"first", "second"})
      sections.push_back({name, {name}, [](layers::Carried c) { return c; }});
    if (buffers) sections[0].uses.emplace_back("mean");
    return cut(whole, sections, 2);
  };
  expect_said(on_two([&](const Mesh& mesh, int stage) { pipeline(mesh, norm(stage == 0)); }),
              "buffers of part 0: rank 0 has 'mean', rank 1 has ''");
}

/// They would wait for micro-batches that never come, or train with others' targets.
TEST(BadPipeline, BatchesOfDifferentSizes) {
  const Kind kind = skipping();
  for (const auto& machines : {std::vector{0, 0}, std::vector{0, 1}})
    for (const auto& [first, second] : {std::pair{10, 8}, {2, 10}, {10, 0}}) {
      const std::vector<int64_t> samples = {first, second};
      const Outcomes outcomes = run_world(machines, [&](Group& all, cluster::Site&) {
        at::set_num_threads(1);
        const Mesh mesh(all, {{"pipeline", 2}});
        const auto net = kind();
        auto pipe = pipeline(mesh, cut(net, 2), {.micro = 4});
        auto train = parallel(mesh, pipe, sgd({.lr = 0.1}));
        const auto [x, y] = kind.batch_of(0);
        train.step(1.0, x, y, mean_of_squares);
        const std::string before = train.sha256();
        pipe.forward(x);  // stage 0 does not wait for the other
        const auto [odd_x, odd_y] = kind.batch_of(1, std::max<int64_t>(1, samples[static_cast<size_t>(all.rank())]));
        std::string said;
        try {
          train.step(samples[static_cast<size_t>(all.rank())] > 0 ? 1.0 : 0.0, odd_x, odd_y, mean_of_squares);
        } catch (const Mismatch& error) {
          said = error.what();
        }
        EXPECT_NE(said.find(fmt::format("batches of different sizes: rank 0 has {} samples, rank 1 has {}", samples[0],
                                        samples[1])),
                  std::string::npos)
            << said;
        EXPECT_EQ(train.sha256(), before);
        train.step(1.0, x, y, mean_of_squares);  // nothing was begun
        EXPECT_NE(train.sha256(), before);
      });
      expect_well(outcomes);
    }
}

TEST(BadPipeline, FewerMicroBatchesThanStagesAreWarnedOf) {
  const Kind kind = skipping();
  expect_well(on_two([&](const Mesh& mesh, int) {
    const std::string few = pipeline(mesh, cut(kind(), 2), {.micro = 1}).reason();
    EXPECT_NE(few.find("Skipping is cut into 2 parts"), std::string::npos) << few;
    EXPECT_NE(few.find("fewer micro-batches (1) than stages (2): the stages wait for 50 % of the time"),
              std::string::npos)
        << few;
    EXPECT_EQ(pipeline(mesh, cut(kind(), 2), {.micro = 2}).reason().find("fewer"), std::string::npos);
  }));
}

// ---- places by measured times, which no two ranks measure alike ----

/// Four layers, of which one takes long on this rank.
struct Uneven : torch::nn::Module, layers::Sectioned {
  explicit Uneven(size_t slow) {
    for (size_t i = 0; i < 4; i++) {
      const std::string name = std::to_string(i);
      const auto layer = register_module(name, torch::nn::Linear(2, 2));
      all.push_back(layers::section(name, {name}, [=, this](const torch::Tensor& x) {
        passes++;
        if (i == slow) std::this_thread::sleep_for(std::chrono::milliseconds(10));
        return layer->forward(x);
      }));
    }
  }
  std::vector<layers::Section> sections() override { return all; }
  std::vector<layers::Section> all;
  int passes = 0;
};

using Names = std::vector<std::string>;
Names begins(const layers::Cut& cut) {
  Names names;
  for (const layers::Part& part : cut.parts) names.push_back(part.name);
  return names;
}

TEST(CutOfAMesh, IsThatOfOneRankWhateverTheOthersMeasure) {
  const torch::Tensor x = torch::ones({1, 2});
  expect_well(on_two([&](const Mesh& mesh, int stage) {
    const auto net = std::make_shared<Uneven>(stage == 0 ? 0 : 3);
    EXPECT_EQ(begins(cut(net, 2, {.example = x})), (Names{"0", stage == 0 ? "1" : "3"})) << "each by itself";
    net->passes = 0;
    const layers::Cut two = cut(mesh, net, 2, {.example = x});
    EXPECT_EQ(net->passes > 0, stage == 0) << "only the first measures";
    EXPECT_EQ(begins(two), (Names{"0", "1"})) << two.reason;
    EXPECT_NE(two.reason.find("by measured time"), std::string::npos) << two.reason;
    EXPECT_EQ(begins(cut(mesh, net, 2, {.costs = {1, 1, 1, 9}})), (Names{"0", "3"}));
    EXPECT_EQ(begins(cut(mesh, net, 2)), (Names{"0", "2"})) << "by parameters";
    pipeline(mesh, two);
  }));
}

/// They run collectives of their own.
TEST(CutOfAMesh, TensorRanksMeasureTogether) {
  const torch::Tensor x = torch::randint(0, 16, {2, 4}, torch::kInt64);
  expect_well(run_world({0, 0, 0, 0}, [&](Group& all, cluster::Site&) {
    at::set_num_threads(1);
    const Mesh mesh(all, {{"pipeline", 2}, {"tensor", 2}});
    const layers::TensorGroup ranks(mesh);
    std::shared_ptr<models::LanguageModel> net;
    {
      const std::lock_guard lock(random_numbers);
      net = models::gpt(ranks, {.layers = 2, .width = 8, .heads = 2, .context = 4, .vocabulary = 16});
    }
    const layers::Cut two = cut(mesh, net, 2, {.example = x});
    std::array<double, 2> mine{two.cost[0], two.cost[1]};
    std::array<double, 8> everybodys{};
    all.comm().all_gather(mine.data(), everybodys.data(), 2, DType::f64, "costs");
    for (size_t i = 2; i < everybodys.size(); i++) EXPECT_EQ(everybodys[i], everybodys[i - 2]) << i;
    EXPECT_GT(mine[0], 0);
  }));
}

TEST(CutOfAMesh, ErrorsAreThoseOfAllRanks) {
  const auto net = [] { return std::make_shared<Uneven>(9); };
  expect_said(on_two([&](const Mesh& mesh, int) {
                cut(mesh, net(), 2, {.example = torch::ones({1, 3})});  // too wide
              }),
              "(1x3 and 2x2)");
  expect_said(on_two([&](const Mesh& mesh, int stage) {
                cut(mesh, net(), 2, {.example = stage == 0 ? torch::ones({1, 2}) : torch::Tensor()});
              }),
              "sections are measured: rank 0 has 'true', rank 1 has 'false'");
  expect_said(on_two([&](const Mesh& mesh, int stage) { cut(mesh, net(), 2 + stage); }),
              "parts of a model: rank 0 has '2', rank 1 has '3'");
  expect_said(on_two([&](const Mesh& mesh, int) {
                cut(mesh, net(), 5, {.example = torch::ones({1, 2})});
              }),
              "use at most 4 stages");
}

}  // namespace
}  // namespace trireme::tests
