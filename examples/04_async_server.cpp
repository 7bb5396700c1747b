// Parameter servers and workers in one program: Adam on the servers, asynchronous, a checkpoint after every epoch.
//
//   trireme launch -n 2 --servers 1 --serve-with ./04_async_server -- ./04_async_server
//
// Without --serve-with the servers are `trireme serve`. Output (worker 0): "epoch 0: loss …" to "epoch 3: loss …",
// where the model is, and how stale gradients were.
#include <torch/torch.h>

#include <cstdio>
#include <filesystem>

#include <trireme/trireme.h>

int main() {
  if (trireme::ps::is_server()) return trireme::ps::serve(), 0;  // until all workers have left

  auto world = trireme::join();
  torch::manual_seed(1);
  auto net = trireme::models::lenet();
  auto sets = trireme::data::open(world.local(), "synthetic:4000");
  auto train = trireme::parallel(world, *net, trireme::adam({.lr = 0.002}), {.sync = trireme::Sync::async});
  auto feed = trireme::data::Feed(train, sets.train, {.batch = 64, .seed = 1});

  const auto folder = std::filesystem::temp_directory_path() / "trireme-async";
  std::filesystem::create_directories(folder);
  double loss = 0;
  for (int e = 0; e < 4; e++) {
    for (auto& batch :
         feed.epoch(e))  // each worker at its own pace: it takes what nobody has, and does more if it is fast
      loss = train.step(batch, [&] { return torch::cross_entropy_loss(net->forward(batch.x), batch.y); }).loss;
    train.save((folder / "checkpoint.safetensors")
                   .string());  // all workers meet here, and the servers' parameters are written
    if (world.first()) std::printf("epoch %d: loss %.2f\n", e, loss);
  }
  const auto counted = train.counted_by_servers();
  if (world.first())
    std::printf("saved to %s; staleness %.2f on average\n", (folder / "checkpoint.safetensors").c_str(),
                counted[0].total("staleness").mean());
  return loss < 0.5 ? 0 : 1;
}
