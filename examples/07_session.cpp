// A session: parameter servers and workers, Adam, asynchronous. It begins anew, or goes on by itself with what is in
// its folder: after Ctrl-C, after SIGTERM, after a crash, with other numbers of workers and servers.
//
//   trireme launch -n 2 --servers 2 -- ./07_session DIR [EPOCHS [DATA]]
//
// Output (worker 0): "begins anew", or "goes on with step 12 of epoch 3"; "epoch 3: loss 0.21" and so on; the newest
// checkpoint. The same command again goes on.
#include <torch/torch.h>

#include <csignal>
#include <cstdio>
#include <cstdlib>

#include <trireme/trireme.h>

static trireme::Parallel* training = nullptr;

int main(int argc, char** argv) {
  const std::string dir = argc > 1 ? argv[1] : "session", data = argc > 3 ? argv[3] : "fashion-mnist";
  const int64_t epochs = argc > 2 ? std::atoi(argv[2]) : 10;
  auto world = trireme::join();
  torch::manual_seed(1);
  auto net = trireme::models::lenet();
  auto sets = trireme::data::open(world.local(), data);
  auto train = trireme::parallel(world, *net, trireme::adam({.lr = 0.002}), {.sync = trireme::Sync::async});
  auto feed = trireme::data::Feed(train, sets.train, {.batch = 64, .seed = 1});
  auto checkpoints = trireme::Checkpoints(train, feed, {.dir = dir, .every = {.seconds = 60, .epochs = 1}, .keep = 3});
  training = &train;
  for (int signal : {SIGINT, SIGTERM}) std::signal(signal, [](int) { training->request_stop(); });

  const bool goes_on = checkpoints.resume();
  if (world.first() && !goes_on) std::printf("begins anew\n");
  if (world.first() && goes_on)
    std::printf("goes on with step %zu of epoch %ld\n", checkpoints.epoch_step(), checkpoints.epoch());
  bool stopped = false;
  for (int64_t e = checkpoints.epoch(); e < epochs && !stopped; e++) {
    auto epoch = feed.epoch(e);
    double loss = 0;
    for (auto& batch : epoch)
      loss = train.step(batch, [&] { return torch::cross_entropy_loss(net->forward(batch.x), batch.y); }).loss;
    stopped = epoch.stopped();
    if (stopped)
      checkpoints.save_stopped(epoch);
    else
      checkpoints.epoch_ended(e);
    if (world.first()) std::printf("epoch %ld: loss %.2f%s\n", e, loss, stopped ? ", stopped" : "");
  }
  const bool complete = checkpoints.finish(trireme::Seconds(30));
  if (world.first()) std::printf("the newest checkpoint is %s\n", checkpoints.newest().c_str());
  return complete ? 0 : 1;
}
