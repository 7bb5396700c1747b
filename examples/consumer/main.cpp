// A consumer of the installed package. Trains y = 2a - 3b on however many ranks there are.
// Usage: consumer, or: trireme launch -n 2 -- consumer        Output: "learned 2.00 -3.00"
#include <torch/torch.h>

#include <cmath>
#include <cstdio>

#include <trireme/trireme.h>

int main() {
  auto world = trireme::join();
  auto net = trireme::models::linear(2, 1);
  auto train = trireme::parallel(world, *net, trireme::sgd({.lr = 0.1}));
  torch::manual_seed(world.rank());
  for (int step = 0; step < 300; step++) {
    const auto x = torch::randn({16, 2});
    const auto y = 2 * x.select(1, 0) - 3 * x.select(1, 1);
    train.step([&] { return torch::mse_loss(net->forward(x).squeeze(1), y); });
  }
  const auto w = net->parameters()[0].flatten();
  const double a = w[0].item<double>(), b = w[1].item<double>();
  if (world.first()) std::printf("learned %.2f %.2f\n", a, b);
  return std::abs(a - 2) < 0.01 && std::abs(b + 3) < 0.01 ? 0 : 1;
}
