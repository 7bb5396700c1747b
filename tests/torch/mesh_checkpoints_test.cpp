// label: multiproc
// Checkpoints of a GPT between all ways to divide it: data × tensor × ZeRO. What one has saved in the middle each other
// goes on with, and ends where a run that was never interrupted does: parameters and the optimizer's state.
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>

#include <trireme/checkpoint/reader.h>
#include <trireme/trireme.h>

#include "../core/cluster/groups.h"
#include "mesh_learners.h"

namespace trireme::tests {
namespace {

namespace fs = std::filesystem;

constexpr int64_t kHalf = 10;
const std::vector<Division> kDivisions = {{1, 1, 0}, {2, 1, 1}, {2, 1, 2}, {2, 1, 3},
                                          {2, 2, 0}, {2, 2, 1}, {2, 2, 3}, {1, 4, 0}};
const fs::path kFolder = fs::temp_directory_path() / fmt::format("trireme-mesh-checkpoints-{}", getpid());

/// Trains from `begin`, or from where a checkpoint was saved, to `end`. Returns the checkpoint of the end.
std::string train(const Division& division, const std::string& from, int64_t end, const std::string& to) {
  std::string path;
  const Course course = course_of("gpt");
  expect_all_well(run_world(division.machines(), [&](Group& group, cluster::Site&) {
    at::set_num_threads(1);
    const Mesh mesh(group, {{"data", division.data}, {"tensor", division.tensor}});
    const Learner learner = make_learner("gpt", mesh);
    auto train = parallel(mesh, *learner.net,
                          adamw({.lr = course.lr, .epsilon = course.epsilon, .weight_decay = course.weight_decay}),
                          exchange::Options{.bucket_bytes = 20000, .clip = course.clip, .zero = division.zero});
    const int64_t begin = from.empty() ? 0 : train.load_state(from);
    EXPECT_EQ(begin, from.empty() ? 0 : kHalf);
    const int64_t share = kBatch / division.data, first = share * mesh.coordinate("data");
    for (int64_t step = begin; step < end; step++) {
      const Samples mine = samples_of("gpt", step).rows(first, share);
      train.step([&] { return learner.loss(mine); });
    }
    const std::string saved = train.save_state(kFolder / to);
    if (group.first()) path = saved;
  }));
  return path;
}

/// All tensors of a checkpoint: parameters, and what the optimizer keeps of each.
std::map<std::string, torch::Tensor> tensors_of(const std::string& path) {
  const checkpoint::Checkpoint checkpoint(checkpoint::system_files(), path);
  std::map<std::string, torch::Tensor> tensors;
  for (const auto& [name, found] : checkpoint.tensors()) {
    if (found.tensor->type != "F64") continue;
    const torch::Tensor tensor = torch::empty(found.tensor->shape, torch::kFloat64);
    found.file->read(*found.tensor, 0, {static_cast<std::byte*>(tensor.data_ptr()), tensor.nbytes()});
    tensors[name] = tensor;
  }
  return tensors;
}

/// Squares of gradients are small, and where a gradient is zero but for rounding, as of keys' biases, nothing is left
/// to compare.
double tolerance(const std::string& name, const torch::Tensor& wanted) {
  return name.starts_with("optimizer/") ? 1e-7 * wanted.abs().max().item<double>() + 1e-15 : 1e-9;
}

TEST(MeshCheckpoints, EachGoesOnWithWhatAnyOtherHasSaved) {
  fs::remove_all(kFolder);
  const auto wanted = tensors_of(train({1, 1, 0}, "", 2 * kHalf, "uninterrupted"));
  size_t of_the_optimizer = 0;
  for (const auto& [name, tensor] : wanted) of_the_optimizer += name.starts_with("optimizer/") ? 1 : 0;
  ASSERT_EQ(of_the_optimizer * 3, wanted.size() * 2) << "two vectors beside each parameter";
  for (const Division& from : kDivisions) {
    const std::string half = train(from, "", kHalf, "half");
    for (const Division& to : kDivisions) {
      const auto ended = tensors_of(train(to, half, 2 * kHalf, "end"));
      ASSERT_EQ(ended.size(), wanted.size());
      for (const auto& [name, tensor] : wanted)
        EXPECT_LT((ended.at(name) - tensor).abs().max().item<double>(), tolerance(name, tensor))
            << from.name() << " to " << to.name() << ": " << name;
      fs::remove_all(kFolder / "end");
    }
    fs::remove_all(kFolder / "half");
  }
  fs::remove_all(kFolder);
}

}  // namespace
}  // namespace trireme::tests
