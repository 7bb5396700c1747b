// The linear model on N processes: rank and world size come from the environment of whatever launcher started them.
//
//   ./01_linear                                one process
//   trireme launch -n 4 -- ./01_linear         four
//   RANK=0 WORLD_SIZE=2 MASTER_PORT=29500 ./01_linear & RANK=1 WORLD_SIZE=2 MASTER_PORT=29500 ./01_linear
//
// Output: rank 0 of 1: loss 0.0001, weights 1.50 -0.50, bias 0.25
#include <torch/torch.h>

#include <cmath>
#include <cstdio>

#include <trireme/trireme.h>

int main() {
  auto world = trireme::join();
  torch::manual_seed(0);
  auto net = torch::nn::Linear(2, 1);
  auto train = trireme::parallel(world, *net, trireme::sgd({.lr = 0.1}));

  torch::manual_seed(100 + world.rank());  // every rank draws its own samples
  trireme::Step last;
  for (int step = 0; step < 200; step++) {
    const auto x = torch::randn({8, 2});
    const auto y = x.matmul(torch::tensor({1.5f, -0.5f})) + 0.25f;
    last = train.step([&] { return torch::mse_loss(net->forward(x).squeeze(1), y); });
  }

  const auto w = net->weight.flatten();
  std::printf("rank %d of %d: loss %.4f, weights %.2f %.2f, bias %.2f\n", world.rank(), world.size(), last.loss,
              w[0].item<double>(), w[1].item<double>(), net->bias.item<double>());
  return last.loss < 1e-3 ? 0 : 1;
}
