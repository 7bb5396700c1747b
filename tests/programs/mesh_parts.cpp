// Four ranks hold one model: two parts of each of two replicas, with the replicas beside each other and with the parts.
// Every rank compares with one process that has the whole model and the whole batch, and goes on alone with the
// checkpoint that all have saved. Machines save to folders of their own, so that rank 0 gets what only others have.
#include <iostream>

#include <trireme/trireme.h>

#include "../torch/mesh_nets.h"

namespace {

using trireme::test::DividedNet;
constexpr int64_t kSteps = 8, kShare = 6;

std::pair<torch::Tensor, torch::Tensor> batch_of(int64_t step) {
  torch::manual_seed(static_cast<uint64_t>(1000 + step));
  const auto x = torch::randn({2 * kShare, DividedNet::kIn}, torch::kFloat64);
  return {x, torch::stack({x.sum(1), x.pow(2).sum(1), x.select(1, 0)}, 1)};
}

std::map<std::string, torch::Tensor> train_alone() {
  DividedNet net;
  torch::optim::AdamW optimizer(net.parameters(), torch::optim::AdamWOptions(0.01));
  for (int64_t step = 0; step < kSteps; step++) {
    const auto [x, y] = batch_of(step);
    optimizer.zero_grad();
    torch::mse_loss(net.forward(x), y).backward();
    torch::nn::utils::clip_grad_norm_(net.parameters(), 0.5);
    optimizer.step();
  }
  std::map<std::string, torch::Tensor> result;
  for (const auto& item : net.named_parameters()) result[item.key()] = item.value().detach().clone();
  return result;
}

bool same(DividedNet& net, const std::map<std::string, torch::Tensor>& reference) {
  for (const auto& item : net.named_parameters()) {
    torch::Tensor wanted = reference.at(item.key());
    if (item.key().starts_with("in.")) wanted = net.in->part.of(wanted, 0);
    if (item.key() == "out.weight") wanted = net.out->part.of(wanted, 1);
    if ((item.value() - wanted).abs().max().item<double>() > 1e-9) return false;
  }
  return true;
}

void run(trireme::World& world, const std::vector<trireme::Axis>& axes, const std::string& folder) {
  const trireme::Mesh mesh = world.mesh(axes);
  const auto options = trireme::ParallelOptions{.exchange = {.bucket_bytes = 512, .clip = 0.5}};
  const auto optimizer = trireme::adamw({.lr = 0.01, .weight_decay = 0.01});
  DividedNet net(&mesh.group("tensor"));
  std::string hash, path;
  bool all_same = false;
  {
    auto train = trireme::parallel(mesh, net, optimizer, options);
    for (int64_t step = 0; step < kSteps; step++) {
      const auto [x, y] = batch_of(step);
      const int64_t first = kShare * mesh.coordinate("data");
      train.step([&, x = x, y = y] {
        return torch::mse_loss(net.forward(x.narrow(0, first, kShare)), y.narrow(0, first, kShare));
      });
    }
    train.settled([&] { all_same = same(net, train_alone()); });
    hash = train.sha256();
    path = train.save_state(folder + "-" + std::to_string(world.machine_of(world.rank())));
  }
  const trireme::Group one = world.split(world.rank());
  DividedNet whole(nullptr, 99);
  auto alone = trireme::parallel(one, whole, optimizer, options);
  const bool goes_on = alone.load_state(path) == kSteps && alone.sha256() == hash;
  std::cout << "rank " << world.rank() << ", " << mesh.describe() << ": data on " << mesh.group("data").machines()
            << ", tensor on " << mesh.group("tensor").machines() << " machines, " << (all_same ? "same" : "other")
            << " parameters, " << (goes_on ? "same" : "other") << " checkpoint\n"
            << std::flush;
  world.comm().barrier("end");
}

}  // namespace

int main(int, char** arguments) {
  trireme::World world = trireme::join();
  run(world, {{"data", 2}, {"tensor", 2}}, arguments[1] + std::string("/inside"));
  run(world, {{"tensor", 2}, {"data", 2}}, arguments[1] + std::string("/across"));
}
