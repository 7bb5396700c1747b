// The measured training step of ours; bench/peers/ddp_train.py does the same.
#include <fmt/format.h>
#include <torch/nn/functional/loss.h>
#include <torch/utils.h>

#include <fstream>

#include <trireme/cluster/world.h>
#include <trireme/models/models.h>
#include <trireme/parallel/parallel.h>
#include <trireme/train/memory_format.h>

#include "../bench.h"

namespace trireme::tools {
namespace {

struct Case {
  std::string model;  // what stands before the dash
  int64_t batch;      // per worker
  int steps;          // timed
};

Case case_named(const std::string& name) {
  const size_t dash = name.find('-');
  const std::string model = name.substr(0, dash);
  const int64_t batch = std::stoll(name.substr(dash + 1));
  const int steps = model == "mlp2048" ? 120 : 400;
  return {model, batch, batch > 32 ? steps / 2 : steps};
}

torch::nn::Sequential make(const std::string& model) {
  if (model == "lenet") return models::lenet();
  const int64_t width = std::stoll(model.substr(3));  // "mlp512"
  return models::mlp({784, width, width, 10});
}

}  // namespace

int measure_step(const std::string& out, const std::string& name, bool alone, const std::string& guard) {
  const Case c = case_named(name);
  const bool first = cluster::place_here().rank == 0;
  World world = alone ? World({0, 1, "", "alone"}, {}) : join({.timeout_setting = ""});
  torch::manual_seed(0);
  auto net = make(c.model);
  const auto x = torch::randn({c.batch, 1, 28, 28});
  const auto y = torch::randint(0, 10, {c.batch}, torch::kInt64);
  const auto loss = [&](const torch::Tensor& output) { return torch::nn::functional::cross_entropy(output, y); };
  const auto format = train::choose_memory_format(world, net, x, loss, name, "");
  double seconds = 0;
  size_t bytes = 0;
  {
    ParallelOptions options{.overlap_next = true, .channels_last = format.channels_last};
    if (guard == "none") options.exchange.on_nan = exchange::OnNan::ignore;
    if (guard == "clip") options.exchange.clip = 1e-6;  // below any norm: all of them are scaled
    auto train = parallel(world, *net, space::momentum({.lr = 0.01, .momentum = 0.9}), options);
    bytes = train.exchange().layout().bytes();
    Clock::time_point start;
    for (int step = 0; step < 20 + c.steps; step++) {
      if (step == 20) start = Clock::now();
      train.step([&] { return loss(net->forward(x)); });
    }
    seconds = seconds_since(start) / c.steps;
  }
  // Unrelated processes each have a speed of their own: all tell it.
  if (first || alone)
    std::ofstream(out, std::ios::app) << fmt::format("{{\"case\": \"{}\", \"ms_per_step\": {:.4f}, \"bytes\": {}}}\n",
                                                     name, seconds * 1e3, bytes);
  return 0;
}

}  // namespace trireme::tools
