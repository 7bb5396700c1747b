// DDP in C++: make the model parallel, keep an ordinary loop. LeNet on the library's synthetic images.
//
//   trireme launch -n 2 -- ./02_lenet
//
// Output (rank 0): "epoch 0: loss 0.89", …, "epoch 3: loss 0.00", "saved to lenet.safetensors"; for Fashion-MNIST use
// data::open(…, "fashion-mnist").
#include <torch/torch.h>

#include <cstdio>
#include <filesystem>

#include <trireme/trireme.h>

int main() {
  auto world = trireme::join();
  torch::manual_seed(1);
  auto net = trireme::models::lenet();  // any torch::nn module of yours
  auto sets = trireme::data::open(world.local(), "synthetic:4000");
  auto train = trireme::parallel(world, *net, trireme::adam({.lr = 0.002}));
  auto feed = trireme::data::Feed(train, sets.train, {.batch = 64, .seed = 1});  // 64 samples over all workers

  trireme::Step last;
  for (int e = 0; e < 4; e++) {
    for (auto& batch : feed.epoch(e))
      last = train.step(batch, [&] { return torch::cross_entropy_loss(net->forward(batch.x), batch.y); });
    if (world.first()) std::printf("epoch %d: loss %.2f\n", e, last.loss);
  }
  const auto path = (std::filesystem::temp_directory_path() / "lenet.safetensors").string();
  train.save(path);
  if (world.first()) std::printf("saved to %s\n", path.c_str());
  return last.loss < 0.5 ? 0 : 1;
}
