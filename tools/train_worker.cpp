// The measured training step of ours; bench/peers/ddp_train.py does the same.
#include <fmt/format.h>
#include <torch/torch.h>

#include <algorithm>
#include <fstream>

#include <trireme/base/error.h>
#include <trireme/cluster/world.h>
#include <trireme/models/models.h>
#include <trireme/parallel/parallel.h>
#include <trireme/train/memory_format.h>
#include "bench.h"

namespace trireme::tools {
namespace {

struct Case {
  const char* name;
  torch::nn::Sequential (*make)();
  int64_t batch;  // per worker
  int steps;      // timed
};

const std::vector<Case>& cases() {
  static const std::vector<Case> all = {
      {"lenet-32", [] { return models::lenet(); }, 32, 400},
      {"lenet-128", [] { return models::lenet(); }, 128, 200},
      {"mlp512-32",
       [] {
         return models::mlp({784, 512, 512, 10});
       },
       32, 400},
      {"mlp512-128",
       [] {
         return models::mlp({784, 512, 512, 10});
       },
       128, 300},
      {"mlp2048-32",
       [] {
         return models::mlp({784, 2048, 2048, 10});
       },
       32, 120},
      {"mlp2048-128",
       [] {
         return models::mlp({784, 2048, 2048, 10});
       },
       128, 80},
  };
  return all;
}

}  // namespace

std::vector<std::string> train_cases() {
  std::vector<std::string> names;
  for (const Case& c : cases()) names.emplace_back(c.name);
  return names;
}

int train_worker(const std::string& out, const std::string& name, bool alone) {
  const auto found = std::find_if(cases().begin(), cases().end(), [&](const Case& c) { return name == c.name; });
  if (found == cases().end()) fail<InvalidArgument>("unknown case '{}'", name);
  const bool first = cluster::place_here().rank == 0;
  World world = alone ? World({0, 1, "", "alone"}, {}) : join();
  torch::manual_seed(0);
  auto net = found->make();
  const auto x = torch::randn({found->batch, 1, 28, 28});
  const auto y = torch::randint(0, 10, {found->batch}, torch::kInt64);
  const auto loss = [&](const torch::Tensor& output) { return torch::nn::functional::cross_entropy(output, y); };
  const auto format = train::choose_memory_format(world, net, x, loss, name, "");
  double seconds = 0;
  {
    auto train = parallel(world, *net, space::momentum({.lr = 0.01, .momentum = 0.9}), {.channels_last = format.channels_last});
    Clock::time_point start;
    for (int step = 0; step < 20 + found->steps; step++) {
      if (step == 20) start = Clock::now();
      train.step([&] { return loss(net->forward(x)); });
    }
    seconds = seconds_since(start) / found->steps;
  }
  if (first) std::ofstream(out) << fmt::format("{{\"case\": \"{}\", \"ms_per_step\": {:.4f}}}\n", name, seconds * 1e3);
  return 0;
}

}  // namespace trireme::tools
