// A rank that trains in a loop of its own, for tests of crews that change: with data that it divides itself, as it sees
// the crew in Step and in the world, or with batches of a feed and virtual workers.
//
//   own_loop FOLDER own|feed STEPS [RANK PLACE NUMBER HIT kill|stop]...
//
// RANK kills or stops itself when it comes by a marked place (base/marks.h) for the HIT-th time. With a file
// FOLDER/wait all pause in the middle until it is gone. Says "pid PID", "crew RANKS from step S" for each crew, and in
// the end "sha256 X" and "parameter NUMBER" of each.
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <torch/torch.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdio>
#include <filesystem>
#include <map>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <trireme/base/marks.h>
#include <trireme/trireme.h>

namespace {

constexpr int64_t kBatch = 24, kEpochSteps = 10;
constexpr int kVirtualWorkers = 4;

struct Blow {
  int rank = 0;
  std::string place;
  uint64_t number = 0;
  int hit = 1, signal = SIGKILL;
};

// For the hook, which has no argument of ours.
std::vector<Blow> blows;
std::map<std::pair<std::string, uint64_t>, int> passed;

void come_by(std::string_view place, uint64_t number) {
  const int hits = ++passed[{std::string(place), number}];
  for (const Blow& blow : blows)
    if (blow.place == place && blow.number == number && blow.hit == hits) kill(getpid(), blow.signal);
}

void say(const std::string& text) {
  std::puts(text.c_str());
  std::fflush(stdout);
}

struct Net : torch::nn::Module {
  Net(int inputs, int outputs)
      : first(register_module("first", torch::nn::Linear(inputs, 12))),
        last(register_module("last", torch::nn::Linear(12, outputs))) {
    to(torch::kFloat64);
  }
  torch::Tensor forward(const torch::Tensor& x) { return last(torch::tanh(first(x.flatten(1)))); }
  torch::nn::Linear first, last;
};

/// The whole batch of a step: anybody can make any of it.
std::pair<torch::Tensor, torch::Tensor> samples_of(int64_t step) {
  const torch::Tensor numbers = torch::arange(kBatch * 16, torch::kFloat64).reshape({kBatch, 16}) + 7 * step;
  return {torch::sin(numbers), torch::cos(numbers.narrow(1, 0, 4))};
}

/// Until somebody has come, or the file is gone.
void pause_here(const std::filesystem::path& folder, const trireme::World& world) {
  const auto has_newcomer = [&](const auto& change) { return change.ranks.back() >= world.size(); };
  while (exists(folder / "wait") && !world.change_wanted() &&
         std::none_of(world.changes().begin(), world.changes().end(), has_newcomer))
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
}

void say_crew(const trireme::Group& crew, int64_t step) {
  say(fmt::format("crew {} from step {}", fmt::join(crew.ranks(), ","), step));
}

/// Steps that are made by whoever is there: each rank takes its part of the samples by its place in the crew.
void loop_with_own_data(trireme::World& world, trireme::Parallel& train, Net& net, int64_t steps,
                        const std::filesystem::path& folder) {
  int64_t at = train.source().next_step();  // not 0 for a newcomer
  while (at < steps) {
    if (at == steps / 2) pause_here(folder, world);
    const trireme::Group& crew = train.group();
    const int64_t begin = kBatch * crew.rank() / crew.size(), end = kBatch * (crew.rank() + 1) / crew.size();
    const auto [x, y] = samples_of(at);
    const trireme::Step done = train.step(static_cast<double>(end - begin) / kBatch,
                                          [&, part = x.slice(0, begin, end), wanted = y.slice(0, begin, end)] {
                                            return torch::mse_loss(net.forward(part), wanted);
                                          });
    if (done.stop) break;
    if (done.updated) at++;
    if (!done.regrouped) continue;
    at = train.source().next_step();
    if (train.group().ranks() != world.group().ranks()) trireme::fail<trireme::Error>("two crews at a time");
    say_crew(world.group(), at);
  }
}

void loop_with_feed(trireme::World& world, trireme::Parallel& train, Net& net, int64_t steps,
                    const std::filesystem::path& folder) {
  const auto sets = trireme::data::open(world.local(), fmt::format("synthetic:{}", kBatch * kEpochSteps));
  trireme::data::Feed feed(train, sets.train, {.batch = kBatch, .dtype = torch::kFloat64});
  for (int64_t epoch = 0; epoch < steps / kEpochSteps; epoch++)
    for (auto& batch : feed.epoch(epoch)) {
      if (epoch == steps / kEpochSteps / 2) pause_here(folder, world);
      const trireme::Step done =
          train.step(batch, [&] { return torch::nn::functional::cross_entropy(net.forward(batch.x), batch.y); });
      if (done.regrouped) say_crew(world.group(), train.source().next_step());
    }
}

void work(const std::filesystem::path& folder, const std::string& data, int64_t steps) {
  torch::set_num_threads(1);
  trireme::World world = trireme::join({.timeout = trireme::Seconds(20)});
  std::erase_if(blows, [&](const Blow& blow) { return blow.rank != world.rank(); });
  trireme::on_marks(come_by);
  say(fmt::format("pid {}", getpid()));
  torch::manual_seed(7);
  Net net = data == "feed" ? Net(784, 10) : Net(16, 4);
  auto train =
      trireme::parallel(world, net, trireme::adam({.lr = 1e-2}),
                        {.exchange = {.bucket_bytes = 512, .virtual_workers = data == "feed" ? kVirtualWorkers : 0}});
  say_crew(world.group(), train.source().next_step());
  (data == "feed" ? loop_with_feed : loop_with_own_data)(world, train, net, steps, folder);
  const std::string hash = train.sha256();
  train.settled([&] {
    if (!world.first()) return;
    say("sha256 " + hash);
    for (const auto& tensor : net.parameters())
      for (int64_t i = 0; i < tensor.numel(); i++)
        say(fmt::format("parameter {:.17g}", tensor.detach().flatten()[i].item<double>()));
  });
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 4)
    return std::fprintf(stderr, "usage: %s FOLDER own|feed STEPS [RANK PLACE NUMBER HIT kill|stop]...\n", argv[0]), 2;
  for (int i = 4; i + 4 < argc; i += 5)
    blows.push_back({std::stoi(argv[i]), argv[i + 1], std::stoull(argv[i + 2]), std::stoi(argv[i + 3]),
                     std::string(argv[i + 4]) == "kill" ? SIGKILL : SIGSTOP});
  try {
    work(argv[1], argv[2], std::stoll(argv[3]));
    return 0;
  } catch (const trireme::Dismissed& dismissed) {
    say(std::string("dismissed: ") + dismissed.what());
    return 0;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return dynamic_cast<const trireme::PeerLost*>(&error) != nullptr ? trireme::cluster::kPeerLostExit : 1;
  }
}
