// An ordinary training loop that SIGINT stops; it saves its model, and then works for as many seconds as it is told.
// For tests of `trireme launch`.
//   stopping MODEL SECONDS [deaf]        deaf: it does not look at what step() says, and goes on
#include <torch/torch.h>

#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <string>

#include <trireme/trireme.h>

namespace {

trireme::Parallel* training = nullptr;  // for the signal handler

/// Keeps a core busy, as an evaluation would.
void work_for(double seconds) {
  const auto start = trireme::Clock::now();
  auto x = torch::rand({64, 64});
  while (trireme::seconds_since(start) < seconds) x = torch::tanh(x.mm(x));
}

}  // namespace

int main(int argc, char** argv) {
  const std::string model = argv[1];
  const double seconds = std::atof(argv[2]);
  const bool deaf = argc > 3;
  auto world = trireme::join();
  auto net = torch::nn::Linear(4, 1);
  auto train = trireme::parallel(world, *net, trireme::sgd({.lr = 0.01}));
  training = &train;
  std::signal(SIGINT, [](int) { training->request_stop(); });
  for (trireme::Step step; !step.stop || deaf;) {
    step = train.step([&] { return net->forward(torch::ones({8, 4})).pow(2).mean(); });
    if (step.number == 10) std::puts("training"), std::fflush(stdout);
  }
  work_for(seconds);
  train.save(model);
  std::puts("saved");
  return 0;
}
