// LeNet on Fashion-MNIST through a parameter server: Adam and L2 on the server, gradients of 10 batches pushed at a
// time, nobody more than 10 pushes ahead, evaluation with a progress bar every second epoch, the last 3 models kept.
//
//   trireme launch -n 2 --servers 1 -- ./05_fashion_server [EPOCHS]
//
// Output (worker 0): "epoch 1 [====      ] loss …", "epoch 2: test accuracy 0.6…", …; the models are in the folder that
// it names at the end.
#include <torch/torch.h>

#include <cstdio>
#include <cstdlib>
#include <deque>
#include <filesystem>

#include <trireme/trireme.h>

namespace fs = std::filesystem;
constexpr int kEvery = 10, kWindow = 10, kEvaluate = 2, kKeep = 3;

void draw_bar(int epoch, size_t done, size_t all, double loss) {
  std::printf("\repoch %d [%-20.*s] loss %.3f ", epoch, static_cast<int>(20 * done / all),
              "====================", loss);
  std::fflush(stdout);
}

double accuracy(trireme::World& world, trireme::Parallel& train, torch::nn::Sequential& net,
                const trireme::data::Dataset& test) {
  const torch::NoGradGuard no_grad;
  double hits = 0;
  train.settled([&] {  // with the server's parameters; each worker measures its share
    const auto share = trireme::data::share_of(test.count, world.rank(), world.size());
    const auto order = trireme::data::epoch_order(test.count, 0, 0, false);
    for (size_t begin = share.begin; begin < share.end; begin += 500) {
      const auto batch =
          trireme::data::make_batch(test, order, begin, std::min(share.end, begin + 500), torch::kFloat32);
      hits += net->forward(batch.x).argmax(1).eq(batch.y).sum().item<double>();
    }
  });
  world.comm().allreduce(&hits, 1, trireme::DType::f64, trireme::Op::sum, "hits");
  return hits / static_cast<double>(test.count);
}

int main(int argc, char** argv) {
  const int epochs = argc > 1 ? std::atoi(argv[1]) : 2;
  auto world = trireme::join();
  torch::manual_seed(1);
  auto net = trireme::models::lenet();
  auto sets = trireme::data::open(world.local(), "fashion-mnist");
  auto train = trireme::parallel(world, *net, trireme::adam({.lr = 0.003, .weight_decay = 1e-5}),
                                 {.exchange = {.sync = trireme::Sync::stale_by(kWindow)}, .accumulate = kEvery});
  auto feed = trireme::data::Feed(train, sets.train, {.batch = 64 * kEvery, .seed = 1});
  const fs::path folder = fs::temp_directory_path() / "trireme-fashion";
  fs::create_directories(folder);
  std::deque<fs::path> models;
  double score = 0;
  for (int e = 1; e <= epochs; e++) {
    auto epoch = feed.epoch(e);
    for (auto& batch : epoch) {
      const auto step = train.step(batch, [&] { return torch::cross_entropy_loss(net->forward(batch.x), batch.y); });
      if (step.updated && world.first()) draw_bar(e, batch.step + 1, epoch.steps(), step.loss);
    }
    if (e % kEvaluate == 0) score = accuracy(world, train, net, sets.test);
    models.push_back(folder / ("epoch" + std::to_string(e) + ".safetensors"));
    train.save(models.back().string());
    if (world.first() && models.size() > kKeep) fs::remove(models.front());
    if (models.size() > kKeep) models.pop_front();
    if (world.first())
      std::printf("\n%s",
                  e % kEvaluate == 0
                      ? ("epoch " + std::to_string(e) + ": test accuracy " + std::to_string(score) + "\n").c_str()
                      : "");
  }
  if (world.first()) std::printf("the last %zu models are in %s\n", models.size(), folder.c_str());
  return score > 0.5 ? 0 : 1;
}
