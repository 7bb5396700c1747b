// Programs that save and go on where a crew or a host is not as it was, for tests that start them as a user would:
//
//   saving crew MODE DIR VICTIM   trains, with a checkpoint after every fourth step. VICTIM kills itself right after
//   one
//                                 was begun, before its part is on the disk. The others make a new group, go on with
//                                 the newest checkpoint there is, and train to the end. Without a victim (-1) all go on
//                                 with what is in DIR. Prints "went on from STEP", "ended SHA256"
//   saving tables DIR [from]      trains rows of a table of the servers, prints them ("rows …") and saves them; or goes
//   on
//                                 with what is in DIR, trains once more and prints them
#include <torch/torch.h>

#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <optional>
#include <string>
#include <vector>

#include <trireme/base/clock.h>
#include <trireme/trireme.h>

namespace {

using trireme::Clock;

constexpr int64_t kEpochs = 2, kEvery = 4, kLastStep = 13;  // of 16 in all: after it the victim dies
constexpr double kSoon = 60;  // seconds to leave the crew before: a checkpoint alone may take 300

torch::nn::Sequential net() {
  torch::manual_seed(3);
  return torch::nn::Sequential(torch::nn::Flatten(), torch::nn::Linear(784, 2000), torch::nn::BatchNorm1d(2000),
                               torch::nn::Tanh(), torch::nn::Linear(2000, 2000), torch::nn::Tanh(),
                               torch::nn::Linear(2000, 10));
}

/// One crew's training: over when the victim has died, or at the end of the last epoch.
struct Training {
  Training(const trireme::Group& group, const trireme::data::Splits& sets, const std::string& mode,
           const std::string& dir)
      : first(group.first()),
        model(net()),
        train(trireme::parallel(group, *model, trireme::momentum({.lr = 0.01}),
                                {.exchange = {.sync = trireme::exchange::sync_named(mode)}})),
        feed(train, sets.train, {.batch = 32, .seed = 5}),
        checkpoints(train, feed, {.dir = dir, .every = {.steps = kEvery}, .keep = 0}) {}

  void run(bool victim) {
    if (checkpoints.resume() && first)
      std::printf("went on from %ld\n", checkpoints.epoch() * static_cast<int64_t>(feed.steps_per_epoch()) +
                                            static_cast<int64_t>(checkpoints.epoch_step()));
    for (int64_t e = checkpoints.epoch(); e < kEpochs; e++) {
      for (auto& batch : feed.epoch(e)) {
        const auto step = e * static_cast<int64_t>(feed.steps_per_epoch()) + static_cast<int64_t>(batch.step);
        if (victim && step == kLastStep - 1) kill(getpid(), SIGKILL);  // the step's checkpoint was begun just now
        train.step(batch, [&] { return torch::cross_entropy_loss(model->forward(batch.x), batch.y); });
      }
      checkpoints.epoch_ended(e);
    }
    checkpoints.finish(trireme::Seconds(60));
    const std::string hash = train.sha256();
    if (first) std::printf("ended %s\n", hash.c_str());
  }

  bool first;
  torch::nn::Sequential model;
  trireme::Parallel train;
  trireme::data::Feed feed;
  trireme::Checkpoints checkpoints;
};

int crew(const std::string& mode, const std::string& dir, int victim) {
  auto world = trireme::join({.timeout = trireme::Seconds(120)});
  const auto sets = trireme::data::open(world.local(), "synthetic:256");
  std::optional<Training> training;
  training.emplace(world.group(), sets, mode, dir);
  try {
    training->run(world.rank() == victim);
  } catch (const trireme::PeerLost& lost) {
    const auto start = Clock::now();
    training.reset();
    if (trireme::seconds_since(start) > kSoon) std::printf("left late\n");
    training.emplace(world.regroup(), sets, mode, dir);
    training->run(false);
  }
  return 0;
}

int tables(const std::string& dir, bool goes_on) {
  auto world = trireme::join({.timeout = trireme::Seconds(30)});
  torch::manual_seed(3);
  torch::nn::Linear model(4, 1);
  const trireme::ps::SparseTable::Options table{
      .name = "users", .width = 3, .optimizer = trireme::adagrad({.lr = 0.1})};
  auto train =
      trireme::parallel(world, *model, trireme::sgd({.lr = 0.1}), {.sync = trireme::Sync::async, .tables = {table}});
  if (goes_on) train.load_state(dir);
  const std::vector<uint64_t> keys = {1, 5, 900, 77777, uint64_t{1} << 60};
  std::vector<float> rows(keys.size() * 3), gradient(rows.size());
  for (size_t i = 0; i < gradient.size(); i++) gradient[i] = static_cast<float>(i % 5) - 1.5F;
  for (int turn = 0; turn < world.group().size(); turn++) {  // one after another: the same bits however they travel
    if (turn == world.rank() && (!goes_on || turn == 0))
      train.servers().push_rows(0, keys, gradient.data(), 0.1).wait();
    train.settled([] {});
  }
  if (world.first()) {
    train.servers().pull_rows(0, keys, rows.data()).wait();
    std::printf("rows");
    for (float x : rows) std::printf(" %.9g", static_cast<double>(x));
    std::printf("\n");
  }
  if (!goes_on) train.save_state(dir);
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  at::set_num_threads(1);
  const std::string what = argc > 1 ? argv[1] : "";
  if (what == "crew" && argc == 5) return crew(argv[2], argv[3], std::atoi(argv[4]));
  if (what == "tables" && argc >= 3) return tables(argv[2], argc > 3);
  return std::fprintf(stderr, "usage: %s crew MODE DIR VICTIM | tables DIR [from]\n", argv[0]), 2;
}
