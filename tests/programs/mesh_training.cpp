// Four ranks in a mesh of data × tensor: each data group trains a model of its own, with batch norm over the group, at
// the same time as the other one. Every rank compares with one process that has the whole batch, and says how far it is
// off.
#include <torch/torch.h>

#include <iostream>

#include <trireme/trireme.h>

namespace {

using torch::nn::BatchNorm1d;
using torch::nn::Linear;
using torch::nn::Sequential;

constexpr int kSteps = 10, kShare = 8;

Sequential net_of(int part) {
  torch::manual_seed(part);
  Sequential net(Linear(5, 6 + 4 * part), BatchNorm1d(6 + 4 * part), torch::nn::Tanh(), Linear(6 + 4 * part, 1));
  net->to(torch::kFloat64);
  return net;
}

torch::Tensor samples_of(int part) {
  torch::manual_seed(100 + part);
  return torch::randn({2 * kShare, 5}, torch::kFloat64);
}

Sequential train_alone(int part) {
  auto net = net_of(part);
  const auto x = samples_of(part), y = x.sum(1, true) * (part + 1);
  torch::optim::SGD optimizer(net->parameters(), torch::optim::SGDOptions(0.05).momentum(0.9));
  for (int step = 0; step < kSteps; step++) {
    optimizer.zero_grad();
    torch::mse_loss(net->forward(x), y).backward();
    optimizer.step();
  }
  return net;
}

double difference(const std::vector<torch::Tensor>& some, const std::vector<torch::Tensor>& others) {
  double largest = 0;
  for (size_t i = 0; i < some.size(); i++)
    largest = std::max(largest, (some[i] - others[i]).abs().max().item<double>());
  return largest;
}

}  // namespace

int main() {
  trireme::World world = trireme::join();
  const trireme::Mesh mesh = world.mesh({{"data", 2}, {"tensor", 2}});
  const trireme::Group& group = mesh.group("data");
  const int part = mesh.coordinate("tensor");
  auto net = net_of(part);
  const auto x = samples_of(part), y = x.sum(1, true) * (part + 1);
  const auto mine = x.narrow(0, kShare * group.rank(), kShare), wanted = y.narrow(0, kShare * group.rank(), kShare);
  {
    auto train = trireme::parallel(group, *net, trireme::momentum({.lr = 0.05, .momentum = 0.9}),
                                   trireme::ParallelOptions{.exchange = {.bucket_bytes = 64}, .sync_batch_norm = true});
    for (int step = 0; step < kSteps; step++) train.step([&] { return torch::mse_loss(net->forward(mine), wanted); });
  }
  const auto reference = train_alone(part);
  std::cout << "rank " << world.rank() << ": " << group.describe() << " on " << group.machines() << " machines, "
            << (difference(net->parameters(), reference->parameters()) < 1e-10 ? "same" : "other") << " parameters, "
            << (difference(net->buffers(), reference->buffers()) < 1e-10 ? "same" : "other") << " statistics\n"
            << std::flush;
  world.comm().barrier("end");
}
