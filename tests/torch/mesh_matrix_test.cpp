// label: multiproc
// Every way to divide 1, 2, 4, 6 and 8 ranks into data × tensor, with every stage of ZeRO: GPT, BERT and LeNet end
// where one process with libtorch's own optimizer does, and their losses are those of PyTorch.
#include <gtest/gtest.h>
#include <unistd.h>

#include <trireme/checkpoint/safetensors.h>
#include <trireme/trireme.h>

#include "../core/cluster/groups.h"
#include "mesh_learners.h"

namespace trireme::tests {
namespace {

struct Case {
  std::string kind;
  Division division;
};

std::string name_of(const Case& c) { return c.kind + "_" + c.division.name(); }

std::vector<Case> all_cases() {
  std::vector<Case> cases;
  for (const char* kind : {"gpt", "bert", "lenet"})
    for (int ranks : {1, 2, 4, 6, 8})
      for (int tensor = 1; tensor <= ranks; tensor++) {
        if (ranks % tensor != 0 || (tensor > 1 && kind == std::string("lenet"))) continue;
        const int data = ranks / tensor;
        for (int zero = 0; zero <= (data > 1 ? 3 : 0); zero++) cases.push_back({kind, {data, tensor, zero}});
      }
  return cases;
}

/// The smallest window: with ZeRO 2 and 3 gradients go, and parameters come and go, in the middle of a pass.
ParallelOptions options_of(const Division& division, const Course& course) {
  ParallelOptions options{
      .exchange = {.bucket_bytes = 20000, .clip = course.clip, .zero = division.zero, .zero_window = 1},
      .accumulate = course.accumulate};
  if (course.cosine) options.schedule = {.kind = RateSchedule::cosine, .total = course.steps};
  return options;
}

space::UpdaterOptions optimizer_of(const Course& course) {
  return adamw({.lr = course.lr, .epsilon = course.epsilon, .weight_decay = course.weight_decay});
}

/// This rank's part of the course. `heard` has each update.
Learner train(const std::string& kind, Group& group, const Division& division, const Course& course,
              const LearnerOptions& shape, const std::function<void(const Step&)>& heard,
              const std::function<void(const Learner&)>& at_end) {
  at::set_num_threads(1);
  const Mesh mesh(group, {{"data", division.data}, {"tensor", division.tensor}});
  const Learner learner = make_learner(kind, mesh, shape);
  auto train = parallel(mesh, *learner.net, optimizer_of(course), options_of(division, course));
  const int64_t share = kBatch / division.data, first = share * mesh.coordinate("data");
  for (int64_t number = 0; number < course.steps * course.accumulate; number++) {
    const Samples mine = samples_of(kind, number, shape.type).rows(first, share);
    const double weight = 1.0 / division.data / course.accumulate;
    const Step done = train.step(weight, [&] { return learner.loss(mine); });
    if (done.updated) heard(done);
  }
  train.settled([&] { at_end(learner); });
  return learner;
}

void expect_like(const Parameters& whole, const std::string& kind, const Division& division, const Course& course,
                 const LearnerOptions& shape = {}) {
  expect_all_well(run_world(division.machines(), [&](Group& group, cluster::Site&) {
    const auto compare = [&](const Learner& learner) {
      const Parameters wanted = parts_of(whole, *learner.net);
      for (const auto& item : learner.net->named_parameters())
        EXPECT_LT((item.value() - wanted.at(item.key())).abs().max().item<double>(), 1e-9)
            << kind << " " << division.name() << ", rank " << group.rank() << ", " << item.key();
    };
    train(
        kind, group, division, course, shape, [](const Step&) {}, compare);
  }));
}

class MeshMatrix : public testing::TestWithParam<Case> {};

/// Once for all cases.
const Parameters& reference(const std::string& kind) {
  static std::map<std::string, Parameters> known;
  auto& found = known[kind];
  if (found.empty()) found = alone(kind, course_of(kind));
  return found;
}

TEST_P(MeshMatrix, EndsLikeOneProcess) {
  const Case& c = GetParam();
  expect_like(reference(c.kind), c.kind, c.division, course_of(c.kind));
}

// ---- against PyTorch ----

constexpr Course kInF32{.steps = 8, .lr = 0.003, .clip = 0.5};
constexpr LearnerOptions kF32{.type = torch::kFloat32};

checkpoint::NamedTensor named(const std::string& name, const torch::Tensor& tensor) {
  return {name, tensor.scalar_type() == torch::kInt64 ? "I64" : "F32", tensor.sizes().vec(), tensor.data_ptr(),
          tensor.nbytes()};
}

/// What a program of its own, without a line of ours, makes of these parameters and batches.
std::vector<double> losses_of_pytorch(const std::string& kind) {
  const std::string stem = testing::TempDir() + fmt::format("mesh-matrix-{}", getpid());
  const std::string parameters = stem + "-parameters", batches = stem + "-batches";
  std::vector<torch::Tensor> xs, ys;
  for (int64_t step = 0; step < kInF32.steps; step++) {
    const Samples some = samples_of(kind, step, torch::kFloat32);
    xs.push_back(some.x), ys.push_back(some.y);
  }
  const torch::Tensor x = torch::stack(xs), y = torch::stack(ys);
  const Learner learner = make_learner(kind, {}, kF32);
  std::vector<checkpoint::NamedTensor> list;
  for (const auto& item : learner.net->named_parameters()) list.push_back(named(item.key(), item.value()));
  checkpoint::write_safetensors(parameters, list, {});
  checkpoint::write_safetensors(batches, {named("x", x), named("y", y)}, {});
  const std::string command =
      fmt::format("/usr/bin/python3 {} {} {} --kind {} --heads {} --lr {} --weight-decay {} --clip {}", LOSS_REFERENCE,
                  parameters, batches, kind, kHeads, kInF32.lr, kInF32.weight_decay, kInF32.clip);
  FILE* const program = popen(command.c_str(), "r");
  std::string said(1 << 12, 0);
  said.resize(fread(said.data(), 1, said.size(), program));
  EXPECT_EQ(pclose(program), 0) << command;
  std::remove(parameters.c_str());
  std::remove(batches.c_str());
  std::vector<double> losses;
  for (size_t at = said.find('['); at != said.npos && losses.size() < static_cast<size_t>(kInF32.steps);
       at = said.find(',', at + 1))
    losses.push_back(std::strtod(said.c_str() + at + 1, nullptr));
  return losses;
}

TEST_P(MeshMatrix, HasTheLossesOfPyTorch) {
  static const bool has_pytorch = std::system("/usr/bin/python3 -c 'import torch' 2> /dev/null") == 0;
  if (!has_pytorch) GTEST_SKIP() << "Debian's Python has no torch";
  const Case& c = GetParam();
  static std::map<std::string, std::vector<double>> known;
  std::vector<double>& expected = known[c.kind];
  if (expected.empty()) expected = losses_of_pytorch(c.kind);
  ASSERT_EQ(expected.size(), static_cast<size_t>(kInF32.steps));
  expect_all_well(run_world(c.division.machines(), [&](Group& group, cluster::Site&) {
    size_t step = 0;
    const auto compare = [&](const Step& done) {
      EXPECT_NEAR(done.loss, expected[step], 1e-5) << name_of(c) << ", rank " << group.rank() << ", step " << step;
      step++;
    };
    train(c.kind, group, c.division, kInF32, kF32, compare, [](const Learner&) {});
    EXPECT_EQ(step, expected.size());
  }));
}

INSTANTIATE_TEST_SUITE_P(All, MeshMatrix, testing::ValuesIn(all_cases()),
                         [](const auto& info) { return name_of(info.param); });

// ---- everything at once ----

TEST(MeshEverything, AccumulatesClipsFollowsACosineAndSplitsTheSequence) {
  const Course course{.clip = 0.5, .accumulate = 2, .cosine = true};
  const Parameters whole = alone("gpt", course);
  for (int zero = 0; zero <= 3; zero++) expect_like(whole, "gpt", {2, 2, zero}, course, {.sequence = true});
}

}  // namespace
}  // namespace trireme::tests
