// label: multiproc
// Checkpoints in ordinary loops: a run that was interrupted and resumed ends with the bits of one that was not, and
// every crew goes on with what any other has saved.
#include <fmt/ranges.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <filesystem>
#include <functional>
#include <map>
#include <mutex>
#include <random>
#include <set>

#include <trireme/checkpoint/compare.h>
#include <trireme/checkpoint/reader.h>
#include <trireme/trireme.h>

#include "../core/cluster/groups.h"
#include "mesh_nets.h"
#include "ranks.h"

namespace trireme {
namespace {

namespace fs = std::filesystem;

struct Folder {
  Folder() : path(fs::temp_directory_path() / fmt::format("trireme-checkpoints-{}-{}", getpid(), count++)) {}
  ~Folder() { fs::remove_all(path); }
  fs::path path;
  inline static int count = 0;
};

struct Crew {
  Sync sync = Sync::shared;
  int ranks = 2;
  int servers = 0;
  int accumulate = 1;
  int tensor = 1;  // so many ranks have parts of one replica
  int zero = 0;
  std::vector<int> machine_of{};  // each rank's; empty: one for all
  std::string name() const {
    return fmt::format("{} with {} ranks, {} servers, accumulate {}, tensor {}, zero {}, machines {}",
                       exchange::name_of(sync), ranks, servers, accumulate, tensor, zero, fmt::join(machine_of, ""));
  }
};

/// One body for each rank. On several machines there is no World, but its group.
void run_crew(const Crew& crew, const std::function<void(const Group&, World*)>& body) {
  if (crew.machine_of.empty())
    return test::run_job(crew.ranks, crew.servers, [&](World& world) { body(world.group(), &world); });
  const auto outcomes = tests::run_world(crew.machine_of, [&](Group& group, cluster::Site&) {
    at::set_num_threads(1);
    body(group, nullptr);
  });
  for (const auto& outcome : outcomes)
    if (outcome) std::rethrow_exception(outcome);
}

/// In parts on a group, or whole.
struct Net : torch::nn::Module {
  explicit Net(const Group* group = nullptr) {
    const std::lock_guard lock(test::making);
    torch::manual_seed(3);
    fc1 = register_module("fc1", std::make_shared<test::Column>(784, 12, test::Part{group}));
    fc2 = register_module("fc2", std::make_shared<test::Row>(12, 10, test::Part{group}));
    norm = register_module("norm", torch::nn::BatchNorm1d(10));
    to(torch::kFloat64);
  }
  torch::Tensor forward(const torch::Tensor& x) {
    return norm->forward(fc2->forward(torch::relu(fc1->forward(x.flatten(1)))));
  }
  std::shared_ptr<test::Column> fc1;
  std::shared_ptr<test::Row> fc2;
  torch::nn::BatchNorm1d norm{nullptr};
};

constexpr size_t kSamples = 400, kBatch = 24;  // 17 steps an epoch, the last one smaller
constexpr int64_t kEpochs = 3;

/// What a run came to.
struct Ended {
  std::string sha256;
  std::multiset<int64_t> samples;  // step of the run · 10^6 + number in the set, over all ranks
  int64_t from_epoch = 0;
  size_t from_step = 0;
  std::vector<Saved> saved;
};

struct Plan {
  std::string dir{};  // "": no checkpoints
  Every every{};
  bool resume = false;
  std::string again{};      // where what was resumed is saved before anything else; "": nowhere
  int64_t stop_after = -1;  // steps of the run, on rank 0
  space::UpdaterOptions optimizer = momentum({.lr = 0.02});
};

Ended run(const Crew& crew, const Plan& plan) {
  Ended ended;
  std::mutex mutex;
  run_crew(crew, [&](const Group& group, World* world) {
    const auto sets = data::open(group.local(), fmt::format("synthetic:{}", kSamples));
    std::optional<Mesh> mesh;
    if (crew.tensor > 1) mesh = world->mesh({{"data", crew.ranks / crew.tensor}, {"tensor", crew.tensor}});
    Net net(mesh ? &mesh->group("tensor") : nullptr);
    const ParallelOptions options{.exchange = {.sync = crew.sync, .zero = crew.zero}, .accumulate = crew.accumulate};
    auto train = mesh               ? parallel(*mesh, net, plan.optimizer, options)
                 : world != nullptr ? parallel(*world, net, plan.optimizer, options)
                                    : parallel(group, net, plan.optimizer, options);
    data::Feed feed(train, sets.train, {.batch = kBatch, .dtype = torch::kFloat64});
    std::optional<Checkpoints> checkpoints;
    if (!plan.dir.empty()) checkpoints.emplace(train, feed, CheckpointsOptions{.dir = plan.dir, .every = plan.every});
    if (plan.resume) {
      EXPECT_TRUE(checkpoints->resume()) << crew.name();
      ended.from_epoch = checkpoints->epoch();
      ended.from_step = checkpoints->epoch_step();
      if (!plan.again.empty()) train.save_state(plan.again);
    }
    const auto first = [&](size_t epoch, const data::Batch& batch) {
      return static_cast<int64_t>((epoch * feed.steps_per_epoch() + batch.step) * 1000000);
    };
    for (int64_t e = checkpoints ? checkpoints->epoch() : 0; e < kEpochs; e++) {
      auto epoch = feed.epoch(e);
      for (auto& batch : epoch) {
        train.step(batch, [&] { return torch::nn::functional::cross_entropy(net.forward(batch.x), batch.y); });
        const std::lock_guard lock(mutex);
        const bool counts = !mesh || mesh->coordinate("tensor") == 0;  // the others of a replica have the same
        for (size_t i = 0; counts && i < batch.samples(); i++)
          ended.samples.insert(first(static_cast<size_t>(e), batch) +
                               batch.x[static_cast<int64_t>(i)].mul(255).round().sum().item<int64_t>());
        const int64_t done = e * static_cast<int64_t>(feed.steps_per_epoch()) + static_cast<int64_t>(batch.step) + 1;
        if (group.first() && done >= plan.stop_after && plan.stop_after >= 0) train.request_stop();
      }
      if (epoch.stopped()) {
        if (checkpoints) checkpoints->save_stopped(epoch);
        break;
      }
      if (checkpoints) checkpoints->epoch_ended(e);
    }
    if (checkpoints) {
      EXPECT_TRUE(checkpoints->finish(Seconds(20)));
    }
    const std::string hash = train.sha256();
    if (group.first()) {
      ended.sha256 = hash;
      if (checkpoints) ended.saved = checkpoints->news();
    }
  });
  for (const Saved& saved : ended.saved) EXPECT_EQ(saved.error, "") << crew.name();
  return ended;
}

std::vector<Crew> in_lockstep() {
  return {{.sync = Sync::shared, .ranks = 2},
          {.sync = Sync::shared, .ranks = 3, .accumulate = 2},
          {.sync = Sync::allreduce, .ranks = 2},
          {.sync = Sync::central, .ranks = 2},
          {.sync = Sync::server, .ranks = 2, .servers = 2},
          {.sync = Sync::shared, .ranks = 4, .tensor = 2}};
}

TEST(Checkpoints, AnInterruptedRunEndsWithTheBitsOfOneThatWasNot) {
  for (const Crew& crew : in_lockstep())
    for (const auto& optimizer : {momentum({.lr = 0.02}), adam({.lr = 0.01})}) {
      const Ended whole = run(crew, {.optimizer = optimizer});
      // in the middle of an epoch; twice in one epoch; exactly at an epoch's end
      for (const std::vector<int64_t>& stops : {std::vector<int64_t>{22}, {4, 8}, {16}, {33, 39}}) {
        const Folder folder;
        Ended last;
        std::multiset<int64_t> samples;
        bool resume = false;
        for (int64_t stop : stops) {
          const Ended part =
              run(crew, {.dir = folder.path, .resume = resume, .stop_after = stop, .optimizer = optimizer});
          samples.insert(part.samples.begin(), part.samples.end());
          resume = true;
        }
        last = run(crew, {.dir = folder.path, .resume = true, .optimizer = optimizer});
        samples.insert(last.samples.begin(), last.samples.end());
        EXPECT_EQ(last.sha256, whole.sha256) << crew.name() << ", stopped after " << stops.back();
        EXPECT_EQ(samples, whole.samples) << crew.name() << ", stopped after " << stops.back();
        const int64_t from = last.from_epoch * 17 + static_cast<int64_t>(last.from_step);
        EXPECT_TRUE(from == stops.back() || from == stops.back() + 1) << crew.name() << " went on after " << from;
      }
    }
}

/// Killed some time after a checkpoint: what was trained since is trained again, with the same result.
TEST(Checkpoints, GoesOnWithTheNewestThatWasMadeOnTheWay) {
  for (const Crew& crew : in_lockstep()) {
    const Folder folder;
    const Ended whole = run(crew, {.dir = folder.path, .every = {.steps = 5}});
    EXPECT_GE(whole.saved.size(), 8u) << crew.name();
    EXPECT_EQ(whole.saved.back().step, 50);
    const Ended again = run(crew, {.dir = folder.path, .every = {.steps = 5}, .resume = true});
    EXPECT_EQ(again.sha256, whole.sha256) << crew.name();
    EXPECT_EQ(again.from_epoch, 2);
    EXPECT_EQ(again.from_step, 16u);
    // three are kept
    EXPECT_EQ(checkpoint::Folder(checkpoint::system_files(), folder.path).list().size(), 3u);
  }
}

/// What was resumed is in the folder already; in another folder it is not.
TEST(Checkpoints, WhatWasResumedIsNotSavedAgain) {
  const Folder first, second;
  run({.ranks = 1}, {.dir = first.path, .every = {.epochs = 1}});
  test::run_job(1, 0, [&](World& world) {
    const auto sets = data::open(world.local(), fmt::format("synthetic:{}", kSamples));
    Net net;
    auto train = parallel(world, net, momentum({.lr = 0.02}));
    data::Feed feed(train, sets.train, {.batch = kBatch, .dtype = torch::kFloat64});
    for (const Folder* folder : {&first, &second}) {
      Checkpoints checkpoints(train, feed, {.dir = folder->path});
      EXPECT_EQ(checkpoints.resume(first.path).manifest.step, 51);
      checkpoints.save_at(51);
      EXPECT_TRUE(checkpoints.finish(Seconds(20)));
      EXPECT_EQ(checkpoints.news().size(), folder == &first ? 0u : 1u);
    }
  });
}

/// By their steps they would be taken for older ones.
TEST(Checkpoints, ANewRunIsRefusedInTheFolderOfAnother) {
  const Folder folder;
  run({.ranks = 1}, {.dir = folder.path, .every = {.steps = 20}});
  EXPECT_THROW(run({.ranks = 2}, {.dir = folder.path, .every = {.steps = 5}}), InvalidArgument);
  const auto entries = checkpoint::Folder(checkpoint::system_files(), folder.path).list();
  ASSERT_EQ(entries.size(), 2u);
  EXPECT_EQ(entries[0].step, 40);
  run({.ranks = 2}, {.dir = folder.path, .every = {.steps = 5}, .resume = true});  // but may go on
}

/// What parts of a world end with, by part: each axis of a mesh trains a model of its own, on samples in an order of
/// its own, in a folder of its own (or without one), and part p stops after `stop` + p steps.
std::map<int, std::string> run_parts(const std::function<std::string(int part)>& folder, bool resume, int64_t stop) {
  std::map<int, std::string> hashes;
  std::mutex mutex;
  test::run_ranks(4, [&](World& world) {
    const auto sets = data::open(world.local(), fmt::format("synthetic:{}", kSamples));
    const Mesh mesh = world.mesh({{"data", 2}, {"tensor", 2}});
    const Group& group = mesh.group("data");
    const int part = mesh.coordinate("tensor");
    Net net;
    {
      const torch::NoGradGuard no_grad;
      for (auto& parameter : net.parameters()) parameter.mul_(1 + part);
    }
    auto train = parallel(group, net, momentum({.lr = 0.02}));
    data::Feed feed(train, sets.train,
                    {.batch = kBatch, .seed = static_cast<uint64_t>(part), .dtype = torch::kFloat64});
    std::optional<Checkpoints> checkpoints;
    const std::string dir = folder(part);
    if (!dir.empty()) checkpoints.emplace(train, feed, CheckpointsOptions{.dir = dir, .every = {.steps = 6}});
    if (resume) {
      EXPECT_TRUE(checkpoints->resume()) << part;
    }
    for (int64_t e = checkpoints ? checkpoints->epoch() : 0; e < kEpochs; e++) {
      auto epoch = feed.epoch(e);
      for (auto& batch : epoch) {
        train.step(batch, [&] { return torch::nn::functional::cross_entropy(net.forward(batch.x), batch.y); });
        const int64_t done = e * static_cast<int64_t>(feed.steps_per_epoch()) + static_cast<int64_t>(batch.step) + 1;
        if (group.first() && stop >= 0 && done >= stop + part) train.request_stop();
      }
      if (epoch.stopped()) {
        if (checkpoints) checkpoints->save_stopped(epoch);
        break;
      }
      if (checkpoints) checkpoints->epoch_ended(e);
    }
    if (checkpoints) {
      EXPECT_TRUE(checkpoints->finish(Seconds(20))) << part;
    }
    const std::string hash = train.sha256();
    const std::lock_guard lock(mutex);
    if (group.first()) hashes[part] = hash;
  });
  return hashes;
}

TEST(Checkpoints, PartsOfAWorldHaveFoldersOfTheirOwn) {
  const auto whole = run_parts([](int) { return std::string(); }, false, -1);
  ASSERT_EQ(whole.size(), 2u);
  EXPECT_NE(whole.at(0), whole.at(1));
  const Folder folders[2];
  const auto folder_of = [&](int part) { return folders[part].path.string(); };
  EXPECT_NE(run_parts(folder_of, false, 20), whole);
  for (const Folder& folder : folders)
    EXPECT_EQ(checkpoint::Folder(checkpoint::system_files(), folder.path).newest(true).skipped.size(), 0u);
  EXPECT_EQ(run_parts(folder_of, true, -1), whole);
}

TEST(Checkpoints, PartsOfAWorldCannotShareAFolder) {
  const Folder folder;
  try {
    run_parts([&](int) { return folder.path.string(); }, false, -1);
    ADD_FAILURE() << "two models in one folder";
  } catch (const InvalidArgument& error) {
    const std::string text = error.what();  // the second when the first part had ended before the other gave up
    EXPECT_TRUE(text.find("another job writes checkpoints to") != text.npos ||
                text.find("has checkpoints of another run") != text.npos)
        << text;
  }
}

std::vector<Crew> all_crews() {
  return {{.sync = Sync::shared, .ranks = 1},
          {.sync = Sync::shared, .ranks = 3},
          {.sync = Sync::allreduce, .ranks = 2, .accumulate = 2},
          {.sync = Sync::central, .ranks = 2},
          {.sync = Sync::server, .ranks = 3, .servers = 2},
          {.sync = Sync::async, .ranks = 2, .servers = 1},
          {.sync = Sync::stale_by(2), .ranks = 3, .servers = 2},
          {.sync = Sync::trylock_with(1), .ranks = 2, .servers = 1},
          {.sync = Sync::round_robin, .ranks = 2, .servers = 1},
          {.sync = Sync::hogwild, .ranks = 2},
          {.sync = Sync::local_for(4), .ranks = 2},
          {.sync = Sync::elastic_with(4, 0.3), .ranks = 2, .servers = 1},
          {.sync = Sync::diloco_for(4), .ranks = 3},
          {.sync = Sync::shared, .ranks = 3, .tensor = 3},
          {.sync = Sync::allreduce, .ranks = 4, .tensor = 2},
          {.sync = Sync::shared, .ranks = 2, .zero = 1, .machine_of = {0, 1}},
          {.sync = Sync::shared, .ranks = 3, .zero = 3, .machine_of = {0, 1, 1}}};
}

using Values = std::vector<double>;

/// A tensor of a checkpoint as all have it, and as each worker has its own.
struct Kept {
  Values common;
  std::map<int, Values> own;
  Values largest() const {
    Values all = own.begin()->second;
    for (const auto& [worker, values] : own)
      for (size_t i = 0; i < all.size(); i++) all[i] = std::max(all[i], values[i]);
    return all;
  }
  Values mean() const {
    Values all(own.begin()->second.size());
    for (const auto& [worker, values] : own)
      for (size_t i = 0; i < all.size(); i++) all[i] += values[i] / static_cast<double>(own.size());
    return all;
  }
};

Values values_of(const checkpoint::Checkpoint::Found& found) {
  const std::vector<std::byte> bytes = found.file->read(*found.tensor);
  Values values(found.tensor->elements());
  for (size_t i = 0; i < values.size(); i++) {
    int64_t whole = 0;
    if (found.tensor->type == "F64") {
      std::memcpy(&values[i], bytes.data() + i * sizeof(double), sizeof(double));
    } else if (found.tensor->type == "I64") {
      std::memcpy(&whole, bytes.data() + i * sizeof whole, sizeof whole);
      values[i] = static_cast<double>(whole);
    }
  }
  return values;
}

/// By name, without random numbers.
std::map<std::string, Kept> state_in(const std::string& path) {
  const checkpoint::Checkpoint kept(checkpoint::system_files(), path);
  std::map<std::string, Kept> state;
  for (const auto& [name, found] : kept.tensors()) {
    if (found.tensor->type == "U8") continue;
    const auto [worker, plain] = checkpoint::split_worker(name);
    Kept& one = state[std::string(plain)];
    (worker < 0 ? one.common : one.own[worker]) = values_of(found);
  }
  return state;
}

/// A parameter of batch norm, and not a statistic.
bool is_trained(const std::string& name) { return name == "norm.weight" || name == "norm.bias"; }

void expect_near(const Values& found, const Values& wanted, const std::string& what) {
  ASSERT_EQ(found.size(), wanted.size()) << what;
  for (size_t i = 0; i < found.size(); i++)
    ASSERT_NEAR(found[i], wanted[i], 1e-12 * std::max(1.0, std::abs(wanted[i]))) << what << ", element " << i;
}

/// What was saved again as soon as it was resumed is what was saved, adapted to the crew as docs/checkpoints.md says.
/// Where nothing had to be, all bytes are the same.
void expect_same_state(const std::string& saved, const std::string& again, bool same_crew) {
  const auto before = state_in(saved), after = state_in(again);
  size_t compared = 0;
  for (const auto& [name, was] : before) {
    const auto found = after.find(name);
    if (found == after.end()) {
      EXPECT_FALSE(same_crew) << name << " is gone";
      continue;  // such as the outer optimizer's momentum
    }
    const Kept& is = found->second;
    const bool steps = name.find("optimizer/steps") != name.npos, buffer = name.find("norm.") == 0 && !is_trained(name);
    const Values joined = was.own.empty() || buffer ? was.common : steps ? was.largest() : was.mean();
    // elastic has a centre beside what each worker has; where workers have their own, and nothing else, it is their
    // mean
    const bool centre = !was.common.empty() && (is.own.empty() || same_crew);
    if (!is.common.empty()) expect_near(is.common, centre ? was.common : joined, name);
    for (const auto& [worker, values] : is.own) {
      const bool as_many = was.own.size() == is.own.size(), more = is.own.size() > was.own.size();
      const bool each = was.own.contains(worker) && (as_many || (buffer && more));
      expect_near(values, each ? was.own.at(worker) : joined, fmt::format("{} of worker {}", name, worker));
    }
    compared++;
  }
  EXPECT_GE(compared, 9u + 4u) << "parameters, momentum or more of each, and batch norm's buffers";
  if (!same_crew) return;
  const auto first = checkpoint::Tensors::open(checkpoint::system_files(), saved),
             second = checkpoint::Tensors::open(checkpoint::system_files(), again);
  EXPECT_TRUE(checkpoint::compare_tensors(first.by_name, second.by_name).empty());
}

/// Goes on with a checkpoint, and expects the same state at first, and each sample of the rest once.
void expect_goes_on(const Crew& to, const checkpoint::Entry& entry, const std::multiset<int64_t>& begun,
                    const std::multiset<int64_t>& whole, bool same_crew, const space::UpdaterOptions& optimizer) {
  const Folder copy, again;
  fs::create_directories(copy.path);
  fs::copy(entry.path, copy.path / entry.name, fs::copy_options::recursive);
  const Ended rest = run(to, {.dir = copy.path, .resume = true, .again = again.path, .optimizer = optimizer});
  EXPECT_EQ(rest.from_epoch * 17 + static_cast<int64_t>(rest.from_step), entry.step);
  expect_same_state(entry.path, checkpoint::Folder(checkpoint::system_files(), again.path).newest(true).entry.path,
                    same_crew);
  std::multiset<int64_t> samples = begun;
  samples.insert(rest.samples.begin(), rest.samples.end());
  EXPECT_EQ(samples, whole);
}

/// Saved by any at a random step, and exactly at an epoch's end; resumed by any.
void expect_any_to_any(const std::vector<Crew>& crews, const space::UpdaterOptions& optimizer, uint32_t seed) {
  std::mt19937 dice(seed);
  const std::multiset<int64_t> whole = run({.ranks = 1}, {.optimizer = optimizer}).samples;
  EXPECT_EQ(whole.size(), kSamples * kEpochs);
  for (size_t from = 0; from < crews.size(); from++) {
    const Folder folder;
    const int64_t stop = 18 + dice() % 24;
    const Ended begun =
        run(crews[from], {.dir = folder.path, .every = {.epochs = 1}, .stop_after = stop, .optimizer = optimizer});
    const auto entries = checkpoint::Folder(checkpoint::system_files(), folder.path).list();
    const checkpoint::Entry& middle = entries.front();
    for (size_t to = 0; to < crews.size(); to++) {
      SCOPED_TRACE(fmt::format("{} to {}, stopped after {}", crews[from].name(), crews[to].name(), middle.step));
      expect_goes_on(crews[to], middle, begun.samples, whole, from == to, optimizer);
    }
    const auto end = std::find_if(entries.begin(), entries.end(), [](const auto& entry) { return entry.step == 17; });
    ASSERT_NE(end, entries.end()) << "the epoch's end was saved";
    EXPECT_EQ(end->manifest->options.at("epoch_step"), "0");
    EXPECT_EQ(end->manifest->epoch, 1);
    std::multiset<int64_t> first_epoch;
    for (const int64_t sample : begun.samples)
      if (sample < 17 * 1000000) first_epoch.insert(sample);
    for (const size_t to : {from, (from + 1) % crews.size()}) {
      SCOPED_TRACE(fmt::format("{} to {}, at an epoch's end", crews[from].name(), crews[to].name()));
      expect_goes_on(crews[to], *end, first_epoch, whole, from == to, optimizer);
    }
  }
}

TEST(Checkpoints, EveryCrewGoesOnWithWhatAnyOtherHasSaved) {
  expect_any_to_any(all_crews(), momentum({.lr = 0.02}), 1);
}

TEST(Checkpoints, AndWithAdamsState) {
  expect_any_to_any({{.sync = Sync::shared, .ranks = 2},
                     {.sync = Sync::allreduce, .ranks = 3},
                     {.sync = Sync::server, .ranks = 2, .servers = 2},
                     {.sync = Sync::async, .ranks = 3, .servers = 1},
                     {.sync = Sync::local_for(4), .ranks = 2},
                     {.sync = Sync::shared, .ranks = 2, .tensor = 2},
                     {.sync = Sync::shared, .ranks = 2, .zero = 2, .machine_of = {0, 1}}},
                    adam({.lr = 0.01}), 2);
}

/// Rows of tables on the servers are saved and restored with all else; by other crews, too.
TEST(Checkpoints, TablesAreKept) {
  const Folder folder;
  const ps::SparseTable::Options table{.name = "users", .width = 3, .optimizer = adagrad({.lr = 0.1})};
  const std::vector<uint64_t> keys = {1, 5, 900, uint64_t{1} << 60};
  std::vector<float> saved(keys.size() * 3), loaded(saved.size());
  test::run_job(2, 2, [&](World& world) {
    Net net;
    auto train = parallel(world, net, momentum({.lr = 0.02}), {.sync = Sync::async, .tables = {table}});
    std::vector<float> gradient(saved.size());
    for (size_t i = 0; i < gradient.size(); i++) gradient[i] = static_cast<float>(i) + static_cast<float>(world.rank());
    train.servers().push_rows(0, keys, gradient.data(), 0.1).wait();
    train.settled([] {});
    if (world.first()) train.servers().pull_rows(0, keys, saved.data()).wait();
    const std::string path = train.save_state(folder.path);
    EXPECT_EQ(checkpoint::Checkpoint(checkpoint::system_files(), path).manifest().about.tables.size(), 1u);
  });
  test::run_job(3, 1, [&](World& world) {
    Net net;
    auto train = parallel(world, net, momentum({.lr = 0.02}), {.sync = Sync::stale_by(1), .tables = {table}});
    train.load_state(folder.path);
    if (world.first()) train.servers().pull_rows(0, keys, loaded.data()).wait();
    train.settled([] {});
  });
  EXPECT_EQ(loaded, saved);
  EXPECT_NE(saved, std::vector<float>(saved.size()));
}

}  // namespace
}  // namespace trireme
