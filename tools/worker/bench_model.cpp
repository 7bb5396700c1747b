// The measured step of a GPT of ours, divided as was asked; bench/peers/gpt_train.py does the same in PyTorch.
#include <fmt/format.h>
#include <torch/utils.h>

#include <fstream>

#include <trireme/cluster/world.h>
#include <trireme/models/transformer.h>
#include <trireme/parallel/parallel.h>

#include "../bench.h"

namespace trireme::tools {
namespace {

constexpr int kWarmUp = 5;

}  // namespace

int measure_model(const std::string& out, const ModelMeasure& what) {
  World world = join({.timeout_setting = ""});
  const Mesh mesh = world.mesh({{"data", world.size() / what.tensor}, {"tensor", what.tensor}});
  torch::manual_seed(0);
  const auto net = models::gpt(mesh, {.layers = what.layers,
                                      .width = what.width,
                                      .heads = what.heads,
                                      .context = what.context,
                                      .vocabulary = what.vocabulary});
  torch::manual_seed(1 + mesh.coordinate("data"));
  const int64_t batch = what.batch / mesh.size("data");
  const torch::Tensor x = torch::randint(0, what.vocabulary, {batch, what.context}, torch::kInt64);
  const torch::Tensor y = torch::randint(0, what.vocabulary, {batch, what.context}, torch::kInt64);
  ParallelOptions options{.overlap_next = true};
  options.exchange.zero = what.zero;
  double ms = 0;
  {
    Parallel train = parallel(mesh, *net, space::adamw({.lr = 3e-4}), options);
    Clock::time_point start;
    for (int step = 0; step < kWarmUp + what.steps; step++) {
      if (step == kWarmUp) start = Clock::now();
      train.step([&] { return net->loss(x, y); });
    }
    ms = seconds_since(start) / what.steps * 1e3;
  }
  if (world.first()) std::ofstream(out, std::ios::app) << fmt::format("{{\"ms_per_step\": {:.4f}}}\n", ms);
  return 0;
}

}  // namespace trireme::tools
