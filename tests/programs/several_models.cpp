// A program that trains several models, for tests that start it as a user would:
//
//   trireme launch -n 2 --servers 2 -- ./several_models MODE WHAT
//
// WHAT is
//   pair       two models by turns, as a generator and its critic: one's loss goes through the other. Prints how far
//   they are from one process, and the
//              loss before and after
//   sequence   three models of different sizes, one after another, each compared with one process
//   endless    the first model, then the second until somebody ends it
//   order      rank 1 makes its models in the other order
//   asleep     rank 1 stops for good in the middle of the second model; the others wait for 3 s
#include <torch/torch.h>
#include <unistd.h>

#include <cstdio>
#include <string>

#include <trireme/cluster/launching/launcher.h>
#include <trireme/trireme.h>

namespace {

using torch::nn::Linear;
using torch::nn::Sequential;

constexpr int64_t kSamples = 24, kSteps = 120;
constexpr double kRate = 0.05;

Sequential net(int64_t in, int64_t hidden, int64_t out) {
  Sequential made(Linear(in, hidden), torch::nn::Tanh(), Linear(hidden, out));
  made->to(torch::kFloat64);
  return made;
}

/// One rank's share of what all ranks train on.
struct Data {
  Data(int rank, int ranks) {
    torch::manual_seed(11);
    const auto all = torch::randn({kSamples, 5}, torch::kFloat64);
    const int64_t share = kSamples / ranks;
    x = all.narrow(0, rank * share, share);
    y = 0.9 * x.narrow(1, 0, 1) - 0.7 * x.narrow(1, 1, 1);
  }
  torch::Tensor x, y;
};

/// Two models, one loss: `front` is trained through `back`, and `back` on what `front` gives.
struct Pair {
  Pair() {
    torch::manual_seed(5);
    front = net(5, 7, 4);
    back = net(4, 9, 1);
  }
  torch::Tensor through(const Data& data) { return torch::mse_loss(back->forward(front->forward(data.x)), data.y); }
  torch::Tensor behind(const Data& data) {
    return torch::mse_loss(back->forward(front->forward(data.x).detach()), data.y);
  }
  double loss() {
    const torch::NoGradGuard no_grad;
    return through(Data(0, 1)).item<double>();
  }
  Sequential front, back;
};

double distance(const Sequential& a, const Sequential& b) {
  double most = 0;
  for (size_t i = 0; i < a->parameters().size(); i++)
    most = std::max(most, (a->parameters()[i] - b->parameters()[i]).abs().max().item<double>());
  return most;
}

void plain_step(torch::optim::Optimizer& optimizer, const torch::Tensor& loss) {
  optimizer.zero_grad();
  loss.backward();
  optimizer.step();
}

trireme::ParallelOptions options_for(const std::string& mode) {
  return {.exchange = {.sync = trireme::exchange::sync_named(mode), .bucket_bytes = 256},
          .overlap_next = mode.starts_with("server") || mode == "shared"};
}

int pair(trireme::World& world, const std::string& mode) {
  const Data mine(world.rank(), world.size()), all(0, 1);
  Pair one, ours;
  torch::optim::SGD front(one.front->parameters(), kRate);
  torch::optim::Adam back(one.back->parameters(), torch::optim::AdamOptions(0.01));
  const double before = ours.loss();
  for (int64_t step = 0; step < kSteps; step++) {
    plain_step(back, one.behind(all));
    plain_step(front, one.through(all));
  }
  auto train_front = trireme::parallel(world, *ours.front, trireme::sgd({.lr = kRate}), options_for(mode));
  auto train_back = trireme::parallel(world, *ours.back, trireme::adam({.lr = 0.01}), options_for(mode));
  for (int64_t step = 0; step < kSteps; step++) {
    train_back.step([&] { return ours.behind(mine); });
    train_front.step([&] { return ours.through(mine); });
  }
  train_front.settled([&] {
    train_back.settled([&] {
      const torch::NoGradGuard no_grad;
      const double far = std::max(distance(ours.front, one.front), distance(ours.back, one.back));
      if (world.first())
        std::printf("distance %.3e before %.4f after %.4f alone %.4f\n", far, before, ours.loss(), one.loss());
    });
  });
  return 0;
}

int sequence(trireme::World& world, const std::string& mode) {
  const Data mine(world.rank(), world.size()), all(0, 1);
  for (int64_t hidden : {3, 40, 11}) {
    torch::manual_seed(hidden);
    auto ours = net(5, hidden, 1), one = net(5, hidden, 1);
    for (size_t i = 0; i < one->parameters().size(); i++)
      one->parameters()[i].data().copy_(ours->parameters()[i].data());
    torch::optim::SGD optimizer(one->parameters(), kRate);
    for (int64_t step = 0; step < kSteps; step++) plain_step(optimizer, torch::mse_loss(one->forward(all.x), all.y));
    double before = 0, after = 0, far = 0;
    {
      auto train = trireme::parallel(world, *ours, trireme::sgd({.lr = kRate}), options_for(mode));
      const auto loss = [&](const Data& data) { return torch::mse_loss(ours->forward(data.x), data.y); };
      before = loss(all).item<double>();
      for (int64_t step = 0; step < kSteps; step++) train.step([&] { return loss(mine); });
      train.settled([&] {
        const torch::NoGradGuard no_grad;
        after = loss(all).item<double>();
        far = distance(ours, one);
      });
    }
    if (world.first()) std::printf("distance %.3e before %.4f after %.4f\n", far, before, after);
  }
  return 0;
}

int endless(trireme::World& world, const std::string& mode, bool sleeps) {
  const Data mine(world.rank(), world.size());
  Pair ours;
  auto train_front = trireme::parallel(world, *ours.front, trireme::sgd({.lr = kRate}), options_for(mode));
  for (int64_t step = 0; step < 3; step++) train_front.step([&] { return ours.through(mine); });
  auto train_back = trireme::parallel(world, *ours.back, trireme::sgd({.lr = kRate}), options_for(mode));
  for (int64_t step = 0;; step++) {
    if (step == 5 && world.first()) std::printf("the second model trains\n"), std::fflush(stdout);
    if (sleeps && step == 5 && world.rank() == 1)
      while (true) pause();
    train_back.step([&] { return ours.behind(mine); });
  }
}

int order(trireme::World& world, const std::string& mode) {
  Pair ours;
  const bool other = world.rank() == 1;
  auto first =
      trireme::parallel(world, other ? *ours.back : *ours.front, trireme::sgd({.lr = kRate}), options_for(mode));
  auto second =
      trireme::parallel(world, other ? *ours.front : *ours.back, trireme::sgd({.lr = kRate}), options_for(mode));
  return 0;
}

}  // namespace

int main(int argc, char** argv) try {
  if (argc != 3) return std::fprintf(stderr, "usage: %s MODE pair|sequence|endless|order|asleep\n", argv[0]), 2;
  const std::string mode = argv[1], what = argv[2];
  auto world = trireme::join({.timeout = trireme::Seconds(what == "asleep" ? 3 : 30)});
  if (what == "pair") return pair(world, mode);
  if (what == "sequence") return sequence(world, mode);
  if (what == "order") return order(world, mode);
  return endless(world, mode, what == "asleep");
} catch (const trireme::PeerLost& error) {
  std::fprintf(stderr, "%s\n", error.what());
  return trireme::cluster::kPeerLostExit;
} catch (const trireme::Error& error) {
  std::fprintf(stderr, "%s\n", error.what());
  return 1;
}
