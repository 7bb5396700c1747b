// A net with two convolutions on MNIST's shape: SGD with momentum 0.5, a cosine schedule over all epochs, a checkpoint
// every 10 epochs. Go on after an interruption with the same command.
//
//   trireme launch -n 2 -- ./08_two_conv DIR [EPOCHS [DATA]]     or alone: ./08_two_conv DIR [EPOCHS [DATA]]
//
// Output (rank 0): "epoch 1: loss 0.93, rate 0.0500" and so on to "epoch 200: …"; after an interruption it begins with
// "goes on with epoch 11". DATA is fashion-mnist unless it is named: mnist, synthetic:1000, a folder of IDX files.
#include <torch/torch.h>

#include <cstdio>
#include <cstdlib>

#include <trireme/trireme.h>

constexpr int64_t kBatch = 64;

torch::nn::Sequential two_conv() {
  using namespace torch::nn;
  return Sequential(Conv2d(1, 10, 5), MaxPool2d(2), ReLU(), Conv2d(10, 20, 5), Dropout2d(), MaxPool2d(2), ReLU(),
                    Flatten(), Linear(320, 50), ReLU(), Dropout(), Linear(50, 10));
}

int main(int argc, char** argv) {
  const std::string dir = argc > 1 ? argv[1] : "two_conv", data = argc > 3 ? argv[3] : "fashion-mnist";
  const int64_t epochs = argc > 2 ? std::atoi(argv[2]) : 200;
  auto world = trireme::join();
  torch::manual_seed(1);
  auto net = two_conv();
  auto sets = trireme::data::open(world.local(), data);
  const auto steps = (static_cast<int64_t>(sets.train.count) + kBatch - 1) / kBatch;
  auto train = trireme::parallel(world, *net, trireme::momentum({.lr = 0.05, .momentum = 0.5}),
                                 {.schedule = {.kind = trireme::RateSchedule::cosine, .total = epochs * steps}});
  auto feed = trireme::data::Feed(train, sets.train, {.batch = kBatch, .seed = 1});
  auto checkpoints = trireme::Checkpoints(train, feed, {.dir = dir, .every = {.epochs = 10}});
  if (checkpoints.resume() && world.first()) std::printf("goes on with epoch %ld\n", checkpoints.epoch() + 1);

  for (int64_t e = checkpoints.epoch(); e < epochs; e++) {
    const double rate = train.learning_rate();
    double loss = 0;
    for (auto& batch : feed.epoch(e))
      loss = train.step(batch, [&] { return torch::cross_entropy_loss(net->forward(batch.x), batch.y); }).loss;
    checkpoints.epoch_ended(e);
    if (world.first()) std::printf("epoch %ld: loss %.2f, rate %.4f\n", e + 1, loss, rate);
  }
}
