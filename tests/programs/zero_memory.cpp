// What a machine holds of a model with ZeRO: program_zero_memory STAGE [STEPS [MILLIONS OF PARAMETERS]]. Adam in f32, a
// rank on each machine.
#include <fmt/format.h>

#include "held.h"

namespace {

constexpr int64_t kWidth = 1024;

torch::nn::Sequential net_of(int64_t layers) {
  torch::nn::Sequential net;
  for (int64_t i = 0; i < layers; i++) {
    net->push_back(torch::nn::Linear(torch::nn::LinearOptions(kWidth, kWidth).bias(false)));
    net->push_back(torch::nn::Tanh());
  }
  return net;
}

}  // namespace

int main(int argc, char** argv) {
  const int stage = std::stoi(argv[1]), steps = argc > 2 ? std::stoi(argv[2]) : 4;
  const int64_t layers = (argc > 3 ? std::stoi(argv[3]) : 25) * int64_t{1000000} / (kWidth * kWidth);
  trireme::World world = trireme::join();
  at::set_num_threads(1);
  net_of(1)->forward(torch::randn({2, kWidth})).square().mean().backward();  // what libtorch needs for itself
  world.comm().barrier("begin");
  const held::Held before = held::at_rest(world);
  auto net = net_of(layers);
  const auto parameters = static_cast<double>(layers * kWidth * kWidth);
  const trireme::exchange::Options options{.bucket_bytes = 1 << 20, .zero = stage};
  auto train = trireme::parallel(world, *net, trireme::adam({.lr = 1e-4}), options);
  const auto x = torch::randn({2, kWidth});
  const auto step = [&] { train.step([&] { return net->forward(x).square().mean(); }); };
  step();  // of the first one the allocator learns where gradients are born
  step();
  train.settled([] {}, trireme::Parallel::Looks::alike);
  size_t largest = 0;
  for (const auto& bucket : train.exchange().flat().buckets()) largest = std::max(largest, bucket.range.size());
  const size_t window =
      stage < 2 ? 0 : trireme::exchange::window_of(options, train.exchange().flat().layout().bytes(), largest);
  held::measure(world, before, parameters, steps, fmt::format("window {}", static_cast<double>(window) / parameters),
                [&] {
                  step();
                  train.settled([] {}, trireme::Parallel::Looks::alike);
                });
}
