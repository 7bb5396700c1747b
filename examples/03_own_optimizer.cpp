// One replica per rank, averaged gradients, and an optimizer of your own ("towers", mirrored strategy): step() leaves
// the mean gradient in .grad().
//
//   trireme launch -n 2 -- ./03_own_optimizer
//
// Output (rank 0): "loss 0.00 after 300 steps of torch::optim::RMSprop"
#include <torch/torch.h>

#include <cstdio>

#include <trireme/trireme.h>

struct Net : torch::nn::Module {  // any module
  torch::nn::Linear in{register_module("in", torch::nn::Linear(4, 32))},
      out{register_module("out", torch::nn::Linear(32, 1))};
  torch::Tensor forward(const torch::Tensor& x) { return out(torch::tanh(in(x))); }
};

int main() {
  auto world = trireme::join();
  Net net;
  auto train = trireme::parallel(world, net);
  torch::optim::RMSprop optimizer(net.parameters(), torch::optim::RMSpropOptions(0.003));

  torch::manual_seed(world.rank());
  trireme::Step last;
  for (int step = 0; step < 300; step++) {
    const auto x = torch::randn({32, 4});
    const auto y = x.sum(1, true).sin();
    last = train.step([&] { return torch::mse_loss(net.forward(x), y); });
    optimizer.step();
  }
  if (world.first()) std::printf("loss %.2f after 300 steps of torch::optim::RMSprop\n", last.loss);
  return last.loss < 0.1 ? 0 : 1;
}
