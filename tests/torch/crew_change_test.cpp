// label: unit
// A rank that is killed in the middle of a step, wherever that is: those who are left end with the parameters of a run
// in which nobody died. Ranks are processes here, forked before libtorch has made threads, and die of SIGKILL.
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <csignal>
#include <cstdlib>
#include <map>
#include <set>

#include <trireme/base/descriptor.h>
#include <trireme/base/marks.h>
#include <trireme/trireme.h>

namespace trireme {
namespace {

constexpr int kEpochs = 2;
constexpr size_t kSamples = 130, kBatch = 12;  // the last step of an epoch is smaller
constexpr int64_t kSteps = kEpochs * 11;

struct Net : torch::nn::Module {
  Net()
      : first(register_module("first", torch::nn::Linear(784, 12))),
        second(register_module("second", torch::nn::Linear(12, 40))),
        last(register_module("last", torch::nn::Linear(40, 10))) {
    to(torch::kFloat64);
  }
  torch::Tensor forward(const torch::Tensor& x) { return last(torch::tanh(second(torch::tanh(first(x.flatten(1)))))); }
  torch::nn::Linear first, second, last;
};

/// Who dies where: at the `hit`-th time that it comes by a place.
struct Death {
  int rank = -1;
  std::string place;
  uint64_t number = 0;
  int hit = 1;
};

struct Plan {
  int ranks = 1;
  std::vector<Death> deaths{};
  space::UpdaterOptions optimizer = space::adam({.lr = 1e-3});
  double clip = 0;
  int accumulate = 1;
  int virtual_workers = 0;
};

// Of a forked rank.
std::vector<Death> own_deaths;
std::map<std::pair<std::string, uint64_t>, int> passed;

void come_by(std::string_view place, uint64_t number) {
  const int hits = ++passed[{std::string(place), number}];
  for (const Death& death : own_deaths)
    if (death.place == place && death.number == number && death.hit == hits) kill(getpid(), SIGKILL);
}

/// What the first rank of the last crew tells.
struct Outcome {
  int64_t updates = 0, crew = 0, regroups = 0, marks = 0;
  bool each_once = false;  // in every epoch, by the ledger
  std::vector<double> parameters;
};

template <class T>
void send(int pipe, const T* data, size_t count) {
  if (write(pipe, data, count * sizeof(T)) != static_cast<ssize_t>(count * sizeof(T))) _exit(3);
}

template <class T>
bool receive(int pipe, T* data, size_t count) {
  size_t bytes = 0;
  while (bytes < count * sizeof(T)) {
    const ssize_t got = read(pipe, reinterpret_cast<char*>(data) + bytes, count * sizeof(T) - bytes);
    if (got <= 0) return false;
    bytes += static_cast<size_t>(got);
  }
  return true;
}

void train(const Plan& plan, int pipe) {
  torch::set_num_threads(1);
  World world = join({.timeout = Seconds(20)});
  const auto sets = data::open(world.local(), "synthetic:" + std::to_string(kSamples));
  torch::manual_seed(7);
  Net net;
  auto train = parallel(
      world, net, plan.optimizer,
      {.exchange = {.bucket_bytes = 4096, .clip = plan.clip, .virtual_workers = plan.virtual_workers, .elastic = true},
       .accumulate = plan.accumulate});
  data::Feed feed(train, sets.train, {.batch = kBatch, .dtype = torch::kFloat64});
  Outcome outcome;
  outcome.each_once = true;
  for (int64_t e = 0; e < kEpochs; e++) {
    for (auto& batch : feed.epoch(e)) {
      const Step done =
          train.step(batch, [&] { return torch::nn::functional::cross_entropy(net.forward(batch.x), batch.y); });
      outcome.regroups += done.regrouped ? 1 : 0;
      if (done.updated) outcome.updates = done.number;
    }
    const exchange::Ledger& ledger = train.ledger();
    outcome.each_once = outcome.each_once && ledger.epoch == e && ledger.samples == kSamples &&
                        ledger.signs == data::sign_of_all(kSamples);
  }
  std::vector<double> parameters;
  train.settled([&] {
    for (const auto& p : net.parameters()) {
      const auto flat = p.detach().flatten().contiguous();
      parameters.insert(parameters.end(), flat.data_ptr<double>(), flat.data_ptr<double>() + flat.numel());
    }
  });
  if (!train.group().first()) return;
  const int64_t head[] = {outcome.updates,           train.group().size(),
                          outcome.regroups,          static_cast<int64_t>(passed.size()),
                          outcome.each_once ? 1 : 0, static_cast<int64_t>(parameters.size())};
  send(pipe, head, 6);
  send(pipe, parameters.data(), parameters.size());
  for (const auto& [mark, hits] : passed) {
    std::array<char, 64> text{};
    fmt::format_to_n(text.data(), text.size() - 1, "{}\t{}\t{}", mark.first, mark.second, hits);
    send(pipe, text.data(), text.size());
  }
}

struct Finished {
  Outcome outcome;
  std::vector<Death> marks;  // that the first rank came by; `hit`: how often
  int killed = 0;
};

Finished run(const Plan& plan) {
  static int jobs = 0;
  const std::string job = fmt::format("elastic-{}-{}", getpid(), jobs++);
  int ends[2];
  EXPECT_EQ(pipe(ends), 0);
  std::vector<pid_t> ranks;
  for (int rank = 0; rank < plan.ranks; rank++) {
    const pid_t pid = fork();
    if (pid != 0) {
      ranks.push_back(pid);
      continue;
    }
    close(ends[0]);
    alarm(60);
    setenv("TRIREME_RANK", std::to_string(rank).c_str(), 1);
    setenv("TRIREME_SIZE", std::to_string(plan.ranks).c_str(), 1);
    setenv("TRIREME_JOB", job.c_str(), 1);
    for (const Death& death : plan.deaths)
      if (death.rank == rank) own_deaths.push_back(death);
    on_marks(come_by);
    try {
      train(plan, ends[1]);
    } catch (const std::exception& error) {
      fmt::print(stderr, "rank {}: {}\n", rank, error.what());
      _exit(2);
    }
    _exit(0);
  }
  close(ends[1]);
  Finished result;
  int64_t head[6];
  const bool told = receive(ends[0], head, 6);
  EXPECT_TRUE(told) << "nobody came to the end";
  if (told) {
    result.outcome = {head[0], head[1],      head[2],
                      head[3], head[4] != 0, std::vector<double>(static_cast<size_t>(head[5]))};
    EXPECT_TRUE(result.outcome.each_once) << "a sample was lost, or came twice";
    EXPECT_TRUE(receive(ends[0], result.outcome.parameters.data(), result.outcome.parameters.size()));
    for (int64_t i = 0; i < head[3]; i++) {
      std::array<char, 64> text{};
      EXPECT_TRUE(receive(ends[0], text.data(), text.size()));
      const std::string line = text.data();
      const size_t tab = line.find('\t'), next = line.find('\t', tab + 1);
      result.marks.push_back(
          {0, line.substr(0, tab), std::stoull(line.substr(tab + 1)), std::stoi(line.substr(next + 1))});
    }
  }
  close(ends[0]);
  for (size_t rank = 0; rank < ranks.size(); rank++) {
    int status = 0;
    waitpid(ranks[rank], &status, 0);
    if (WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL)
      result.killed++;
    else
      EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << "rank " << rank << ": status " << status;
  }
  return result;
}

double furthest(const std::vector<double>& a, const std::vector<double>& b) {
  double most = a.size() == b.size() && !a.empty() ? 0 : INFINITY;
  for (size_t i = 0; i < std::min(a.size(), b.size()); i++) most = std::max(most, std::abs(a[i] - b[i]));
  return most;
}

bool thorough() { return getenv("TRIREME_LONG") != nullptr; }

/// With virtual workers bits are the same, whoever died; otherwise sums are rounded in another order.
double tolerance(const std::string& name) {
  return name.starts_with("virtual") ? std::numeric_limits<double>::denorm_min() : 1e-12;
}

class Elastic : public testing::TestWithParam<const char*> {};

Plan plan_of(const std::string& name, int ranks) {
  Plan plan{.ranks = ranks};
  if (name == "momentum") plan.optimizer = space::momentum({.lr = 0.05});
  if (name == "clip") plan.clip = 0.5;
  if (name == "accumulate") plan.accumulate = 2;
  if (name.starts_with("virtual")) plan.virtual_workers = 5;
  if (name == "virtual_clip") plan.clip = 0.5;
  return plan;
}

TEST_P(Elastic, ADeathAtAnyPlaceLeavesTheParametersOfAnUndisturbedRun) {
  const std::string name = GetParam();
  const Finished alone = run(plan_of(name, 1));
  ASSERT_EQ(alone.outcome.updates, kSteps);
  const Finished calm = run(plan_of(name, 3));
  EXPECT_EQ(calm.outcome.regroups, 0);
  EXPECT_LT(furthest(calm.outcome.parameters, alone.outcome.parameters), tolerance(name));
  std::set<std::pair<std::string, uint64_t>> places;
  for (const Death& mark : calm.marks) places.insert({mark.place, std::min<uint64_t>(mark.number, 40)});
  EXPECT_GE(places.size(), 30u);
  size_t turn = 0;
  for (const Death& mark : calm.marks) {
    if (mark.number > 40) continue;  // of steps and journal entries there are many
    turn++;
    if (!thorough() && turn % 4 != std::hash<std::string>{}(name) % 4) continue;
    for (int seed = 0; seed < (thorough() ? 3 : 1); seed++) {
      Plan plan = plan_of(name, 3);
      const int victim = static_cast<int>(turn + static_cast<size_t>(seed)) % 3;
      const int hit = mark.hit <= 2 ? 1 : 1 + (static_cast<int>(turn) * 7 + seed * 5) % (mark.hit - 1);
      plan.deaths = {{victim, mark.place, mark.number, hit}};
      SCOPED_TRACE(
          fmt::format("{}: rank {} dies at '{}' {} for the {}. time", name, victim, mark.place, mark.number, hit));
      const Finished disturbed = run(plan);
      EXPECT_EQ(disturbed.killed, 1);
      EXPECT_EQ(disturbed.outcome.updates, kSteps);
      EXPECT_EQ(disturbed.outcome.crew, 2);
      EXPECT_LT(furthest(disturbed.outcome.parameters, alone.outcome.parameters), tolerance(name));
      if (HasFailure()) return;
    }
  }
}

TEST_P(Elastic, DeathsOneAfterAnotherAndInTheMiddleOfARecovery) {
  const std::string name = GetParam();
  const Finished alone = run(plan_of(name, 1));
  const std::vector<std::vector<Death>> histories = {
      {{1, "step: decided", 4, 1}, {2, "step: decided", 3, 1}, {0, "bucket: arrived", 1, 12}},
      {{3, "update: bucket", 1, 5}, {0, "crew: given up", 0, 1}},
      {{0, "update: bucket done", 1, 3}, {2, "take over: copied", 0, 1}},
      {{2, "bucket: ready", 0, 6}, {1, "take over: done", 0, 1}, {0, "crew: given up", 0, 2}},
  };
  for (const auto& deaths : histories) {
    Plan plan = plan_of(name, 4);
    plan.deaths = deaths;
    SCOPED_TRACE(fmt::format("{}: rank {} first, at {}", name, deaths[0].rank, deaths[0].place));
    const Finished disturbed = run(plan);
    EXPECT_EQ(disturbed.killed, static_cast<int>(deaths.size()));
    EXPECT_EQ(disturbed.outcome.updates, kSteps);
    EXPECT_LT(furthest(disturbed.outcome.parameters, alone.outcome.parameters), tolerance(name));
    if (HasFailure()) return;
  }
}

INSTANTIATE_TEST_SUITE_P(Ways, Elastic,
                         testing::Values("adam", "momentum", "clip", "accumulate", "virtual", "virtual_clip"),
                         [](const auto& way) { return std::string(way.param); });

}  // namespace
}  // namespace trireme
