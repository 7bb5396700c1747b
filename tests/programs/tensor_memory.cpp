// What a rank holds of a GPT that all ranks divide: program_tensor_memory [STEPS [LAYERS]]. Adam in f32, a rank on each
// machine.
#include <fmt/format.h>

#include "held.h"

int main(int argc, char** argv) {
  const int steps = argc > 1 ? std::stoi(argv[1]) : 3;
  const int64_t layers = argc > 2 ? std::stoi(argv[2]) : 8;
  constexpr int64_t kWidth = 512, kContext = 16, kVocabulary = 256;
  trireme::World world = trireme::join();
  at::set_num_threads(1);
  const auto make = [&](const trireme::layers::TensorGroup& ranks, int64_t depth) {
    return trireme::models::gpt(
        ranks, {.layers = depth, .width = kWidth, .heads = 8, .context = kContext, .vocabulary = kVocabulary});
  };
  const auto x = torch::randint(0, kVocabulary, {1, kContext}, torch::kInt64);
  make({}, 1)->loss(x, x).backward();  // what libtorch needs for itself
  world.comm().barrier("begin");
  const held::Held before = held::at_rest(world);
  const auto mesh = world.mesh({{"data", 1}, {"tensor", world.size()}});
  auto net = make(mesh, layers);
  auto train = trireme::parallel(mesh, *net, trireme::adam({.lr = 1e-4}));
  const auto parameters = static_cast<double>(train.contents().layout.elements());
  const auto mine = static_cast<double>(train.exchange().flat().layout().elements());
  const auto step = [&] { train.step([&] { return net->loss(x, x); }); };
  step();
  step();
  held::measure(world, before, parameters, steps, fmt::format("of {} parameters {}", parameters, mine / parameters),
                step);
}
