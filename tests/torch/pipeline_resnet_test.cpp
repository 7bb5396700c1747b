// label: multiproc
// Residual networks in stages, against one process with libtorch's own optimizer, and against plain PyTorch.
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <filesystem>

#include <trireme/checkpoint/safetensors.h>

#include "pipeline_kinds.h"

namespace trireme::tests {
namespace {

bool by_hand() { return std::getenv("TRIREME_LONG") != nullptr; }

/// With batch norms that are frozen: otherwise they see one micro-batch at a time.
Kind frozen_resnet(int depth) {
  return {fmt::format("resnet{}", depth),
          [depth] {
            auto net = models::resnet(depth, {.channels = 1, .classes = 3});
            net->eval();
            return net;
          },
          [](torch::nn::Module& net, const torch::Tensor& x) { return dynamic_cast<models::ResNet&>(net).forward(x); },
          {1, 8, 8},
          {3},
          /*batch=*/24,
          /*rate=*/0.001};
}

/// ResNet-18 has ten sections, and ResNet-34 eighteen.
Kind kind_for(const Case& c) {
  return frozen_resnet(c.pipeline * stages::parse_schedule(c.schedule).chunks <= 10 ? 18 : 34);
}

struct Grid {
  int data = 1, pipeline = 1;
};

/// All ways to write a number as a product of two.
std::vector<Grid> grids_of(int ranks) {
  std::vector<Grid> grids;
  for (int data = 1; data <= ranks; data++)
    if (ranks % data == 0) grids.push_back({data, ranks / data});
  return grids;
}

/// Of ZeRO 1 each copy of the model has a machine, and otherwise all ranks are on one.
Case case_of(const Grid& grid, const std::string& schedule, int zero) {
  Case c{.machine_of = {}, .data = grid.data, .pipeline = grid.pipeline, .schedule = schedule, .zero = zero};
  for (int rank = 0; rank < grid.data * grid.pipeline; rank++)
    c.machine_of.push_back(zero > 0 ? rank / grid.pipeline : 0);
  c.seconds = 300;
  return c;
}

class ResNetFactorisations : public testing::TestWithParam<int> {};

/// All of them by hand (TRIREME_LONG=1).
TEST_P(ResNetFactorisations, EndLikeOneProcess) {
  if (!by_hand()) GTEST_SKIP() << "takes minutes: TRIREME_LONG=1";
  for (const Grid& grid : grids_of(GetParam()))
    for (const char* schedule : {"gpipe", "1f1b", "interleaved:2", "zero-bubble"})
      for (const int zero : {0, 1}) {
        const Case c = case_of(grid, schedule, zero);
        expect_parity(kind_for(c), c);
      }
}
INSTANTIATE_TEST_SUITE_P(OfRanks, ResNetFactorisations, testing::Values(1, 2, 4, 6, 8));

TEST(ResNetPipeline, SomeMeshesEndLikeOneProcess) {
  for (const Case& c : {case_of({1, 2}, "1f1b", 0), case_of({1, 4}, "interleaved:2", 0),
                        case_of({2, 2}, "zero-bubble", 1), case_of({3, 2}, "gpipe", 0)})
    expect_parity(frozen_resnet(18), c, 3);
}

TEST(ResNetPipeline, DeeperOnes) {
  expect_parity(frozen_resnet(34), case_of({1, 6}, "interleaved:2", 0), 2);  // 12 parts
  expect_parity(frozen_resnet(50), case_of({1, 2}, "zero-bubble", 0), 2);
}

// ---- against PyTorch ----

constexpr int64_t kLosses = 5;  // steps: in f32 rounding grows from one to the next

struct Images {
  torch::Tensor x, y;  // of all steps, which have the same ones
};

Images images(torch::Dtype dtype) {
  auto generator = at::detail::createCPUGenerator(17);
  return {torch::randn({1, 13, 1, 12, 12}, generator, dtype).repeat({kLosses, 1, 1, 1, 1}),
          torch::randint(0, 3, {1, 13}, generator, torch::kInt64).repeat({kLosses, 1})};
}

std::shared_ptr<models::ResNet> net_of(torch::Dtype dtype, bool frozen) {
  const std::lock_guard lock(random_numbers);
  torch::manual_seed(5);
  auto net = models::resnet(18, {.channels = 1, .classes = 3});
  net->to(dtype);
  net->train(!frozen);
  return net;
}

checkpoint::NamedTensor named(const std::string& name, const torch::Tensor& tensor) {
  const char* type = tensor.scalar_type() == torch::kInt64     ? "I64"
                     : tensor.scalar_type() == torch::kFloat64 ? "F64"
                                                               : "F32";
  return {name, type, tensor.sizes().vec(), tensor.data_ptr(), tensor.nbytes()};
}

/// What a program of its own, without a line of ours, makes of these images.
std::vector<double> losses_of_pytorch(const torch::nn::Module& net, const Images& data, const std::string& flags) {
  const std::string stem = testing::TempDir() + fmt::format("trireme-resnet-{}", getpid());
  const std::string model = stem + "-model", batches = stem + "-batches";
  std::vector<checkpoint::NamedTensor> list;
  for (const auto& item : net.named_parameters()) list.push_back(named(item.key(), item.value()));
  for (const auto& item : net.named_buffers()) list.push_back(named(item.key(), item.value()));
  checkpoint::write_safetensors(model, list, {});
  checkpoint::write_safetensors(batches, {named("x", data.x), named("y", data.y)}, {});
  FILE* const program =
      popen(fmt::format("/usr/bin/python3 {} {} {} {}", RESNET_REFERENCE, model, batches, flags).c_str(), "r");
  std::string said(1 << 12, 0);
  said.resize(fread(said.data(), 1, said.size(), program));
  EXPECT_EQ(pclose(program), 0);
  std::filesystem::remove(model);
  std::filesystem::remove(batches);
  std::vector<double> losses;
  for (size_t at = said.find('['); at != said.npos && losses.size() < size_t{kLosses}; at = said.find(',', at + 1))
    losses.push_back(std::strtod(said.c_str() + at + 1, nullptr));
  return losses;
}

torch::Tensor cross_entropy(const torch::Tensor& output, const torch::Tensor& y) {
  return torch::nn::functional::cross_entropy(output, y);
}

struct Learning {
  torch::Dtype dtype;
  bool frozen;  // batch norms
  double tolerance;
};

/// 13 images in 3 micro-batches, unevenly: batch norms see those of one at a time, here and there.
TEST(ResNetPipeline, LearnsAsInPyTorch) {
  if (access("/usr/bin/python3", X_OK) != 0 || std::system("/usr/bin/python3 -c 'import torch' 2> /dev/null") != 0)
    GTEST_SKIP() << "Debian's Python has no torch";
  for (const auto& [dtype, frozen, tolerance] :
       {Learning{torch::kFloat32, false, 1e-5}, {torch::kFloat64, false, 1e-9}, {torch::kFloat64, true, 1e-9}}) {
    const Images data = images(dtype);
    const std::vector<double> expected = losses_of_pytorch(
        *net_of(dtype, frozen), data, frozen ? "--micro 3 --lr 0.001 --frozen" : "--micro 3 --lr 0.001");
    ASSERT_EQ(expected.size(), size_t{kLosses});
    EXPECT_LT(expected.back(), expected.front()) << "it learns";
    for (const char* schedule : {"interleaved:2", "zero-bubble"})
      expect_well(
          run_world({0, 0}, [&, dtype = dtype, frozen = frozen, tolerance = tolerance](Group& all, cluster::Site&) {
            at::set_num_threads(1);
            const Mesh mesh(all, {{"pipeline", 2}});
            const auto net = net_of(dtype, frozen);
            const auto spec = stages::parse_schedule(schedule);
            auto pipe = pipeline(mesh, cut(net, 2 * spec.chunks), {.micro = 3, .schedule = spec});
            auto train = parallel(mesh, pipe, momentum({.lr = 0.001, .momentum = 0.9}));
            for (int64_t step = 0; step < kLosses; step++) {
              const double loss = train.step(1.0, data.x[step], data.y[step], cross_entropy).loss;
              ASSERT_NEAR(loss, expected[static_cast<size_t>(step)], tolerance)
                  << schedule << (frozen ? ", frozen" : "") << ", step " << step;
            }
          }));
  }
}

}  // namespace
}  // namespace trireme::tests
