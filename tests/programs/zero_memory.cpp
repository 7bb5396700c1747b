// What a rank that is alone on its machine really holds: program_zero_memory STAGE [STEPS [MILLIONS OF PARAMETERS]].
// Measured, not computed: the memory that the machine's segment has been given, and this process's resident set,
// between steps and at most within one (a thread looks every half millisecond). Figures are bytes per parameter, Adam
// in f32.
#include <sys/stat.h>
#include <torch/torch.h>

#include <atomic>
#include <fstream>
#include <iostream>
#include <thread>

#include <trireme/trireme.h>

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

struct Held {
  double segment = 0, resident = 0;  // bytes
};

Held held(trireme::World& world) {
  struct stat file {};
  fstat(world.local().segment().descriptor(), &file);
  size_t pages = 0, resident = 0;
  std::ifstream("/proc/self/statm") >> pages >> resident;
  return {static_cast<double>(file.st_blocks) * 512, static_cast<double>(resident) * 4096};
}

}  // namespace

int main(int argc, char** argv) {
  const int stage = std::stoi(argv[1]), steps = argc > 2 ? std::stoi(argv[2]) : 4;
  const int64_t layers = (argc > 3 ? std::stoi(argv[3]) : 25) * int64_t{1000000} / (kWidth * kWidth);
  trireme::World world = trireme::join();
  at::set_num_threads(1);
  net_of(1)->forward(torch::randn({2, kWidth})).square().mean().backward();  // what libtorch needs for itself
  world.comm().barrier("begin");
  const Held before = held(world);
  auto net = net_of(layers);
  const auto parameters = static_cast<double>(layers * kWidth * kWidth);
  const trireme::exchange::Options options{.bucket_bytes = 1 << 20, .zero = stage};
  auto train = trireme::parallel(world, *net, trireme::adam({.lr = 1e-4}), options);
  const auto x = torch::randn({2, kWidth});
  const auto step = [&] { train.step([&] { return net->forward(x).square().mean(); }); };
  step();  // of the first one the allocator learns where gradients are born
  step();
  Held most = before, rest = before;
  std::atomic<bool> ended{false};
  std::thread watch([&] {
    while (!ended.load()) {
      const Held now = held(world);
      most = {std::max(most.segment, now.segment), std::max(most.resident, now.resident)};
      std::this_thread::sleep_for(std::chrono::microseconds(500));
    }
  });
  const auto begin = std::chrono::steady_clock::now();
  for (int i = 0; i < steps; i++) step();
  train.settled([] {}, trireme::Parallel::Looks::alike);
  const std::chrono::duration<double> taken = std::chrono::steady_clock::now() - begin;
  ended.store(true);
  watch.join();
  rest = held(world);
  size_t largest = 0;
  for (const auto& bucket : train.exchange().flat().buckets()) largest = std::max(largest, bucket.range.size());
  const size_t window =
      stage < 2 ? 0 : trireme::exchange::window_of(options, train.exchange().flat().layout().bytes(), largest);
  std::cout << "rank " << world.rank() << " of " << world.size() << ": segment "
            << (rest.segment - before.segment) / parameters << " at most "
            << (most.segment - before.segment) / parameters << ", resident "
            << (rest.resident - before.resident) / parameters << " at most "
            << (most.resident - before.resident) / parameters << ", window " << static_cast<double>(window) / parameters
            << ", " << taken.count() / steps * 1000 << " ms a step\n"
            << std::flush;
  world.comm().barrier("end");
}
