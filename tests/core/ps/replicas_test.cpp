// label: multiproc
// Servers that keep each other's part: as threads of this process, which end in the middle of everything, and others
// that come in their place.
#include <fmt/format.h>

#include <chrono>
#include <optional>
#include <random>
#include <sstream>

#include <trireme/ps/control.h>
#include <trireme/ps/shm/memory.h>

#include "servers.h"

namespace trireme::ps::tests {
namespace {

constexpr Seconds kPatience{20};

/// Servers that can be ended and begun one by one.
class Crew {
 public:
  Crew(int workers, int servers) : workers_(workers), servers_(servers), running_(static_cast<size_t>(servers)) {
    for (int server = 0; server < servers; server++) begin(server);
  }
  ~Crew() {
    for (auto& one : running_)
      if (one) one->stop(), one->thread.join();
  }
  /// Anew, where one has ended.
  void begin(int server) {
    auto& place = running_[static_cast<size_t>(server)];
    place = std::make_unique<Running>();
    place->server = std::make_unique<Server>(ServerOptions{.server = server,
                                                           .workers = workers_,
                                                           .servers = servers_,
                                                           .replicas = 1,
                                                           .meeting = meeting,
                                                           .timeout = kPatience});
    place->thread = std::thread([this, one = place.get()] {
      try {
        one->server->run();
      } catch (...) {
        const std::lock_guard lock(mutex_);
        errors.push_back(std::current_exception());
      }
      const std::lock_guard lock(one->mutex);
      one->server.reset();  // as a process that ends
    });
  }
  /// All that it knows is gone with it.
  void end(int server) {
    auto& place = running_[static_cast<size_t>(server)];
    if (!place) return;
    place->stop();
    place->thread.join();
    place.reset();
  }
  /// Until those that run have ended by themselves.
  void join() {
    for (auto& one : running_)
      if (one) one->thread.join(), one.reset();
  }

  std::string tell(int server, const std::string& words) const {
    char name[32];
    std::snprintf(name, sizeof name, "%016lx", static_cast<unsigned long>(space::hash_text(meeting.job)));
    return control({name, server}, words, Seconds(5));
  }
  /// By shard and role: the digest of all that is known. Of those who answer.
  std::map<std::pair<int, std::string>, std::string> digests() const {
    std::map<std::pair<int, std::string>, std::string> found;
    for (int server = 0; server < servers_; server++) {
      if (!running_[static_cast<size_t>(server)]) continue;
      std::istringstream lines(tell(server, "digest"));
      for (std::string line; std::getline(lines, line);) {
        const size_t at = line.find("part ");
        if (at == std::string::npos) continue;
        for (const char* role : {"primary", "backup of"})
          if (line.find(fmt::format(", {}", role)) != std::string::npos)
            found[{std::stoi(line.substr(at + 5)), role}] = line.substr(line.rfind(' ') + 1);
      }
    }
    return found;
  }
  /// Nothing is under way: primary and backup know the same.
  void expect_same(int backups) const {
    const auto found = digests();
    int compared = 0;
    for (int shard = 0; shard < servers_; shard++) {
      const auto primary = found.find({shard, "primary"}), backup = found.find({shard, "backup of"});
      ASSERT_NE(primary, found.end()) << "nobody has part " << shard;
      if (backup == found.end()) continue;
      EXPECT_EQ(primary->second, backup->second) << "part " << shard;
      EXPECT_EQ(primary->second.size(), 64u);
      compared++;
    }
    EXPECT_EQ(compared, backups);
  }

  Meeting meeting{.job = job_name()};
  Outcomes errors;

 private:
  struct Running {
    void stop() {
      const std::lock_guard lock(mutex);
      if (server) server->stop();
    }
    std::mutex mutex;
    std::unique_ptr<Server> server;
    std::thread thread;
  };
  const int workers_, servers_;
  std::mutex mutex_;
  std::vector<std::unique_ptr<Running>> running_;
};

Job replicated(int workers, int servers, Order order) {
  Job job = small_job(workers, servers, order);
  job.replicas = 1;
  return job;
}

void publish(Client& client) {
  if (client.worker() == 0) {
    fill(client.job().layout, client.parameters(), [](size_t, size_t) { return 0.f; });
    client.set(whole(client)).wait();
  }
  client.barrier();
  client.pull(whole(client)).wait();
}

/// A known integer for each worker and step: sums of floats are exact.
float number(int worker, int step, size_t i) {
  return static_cast<float>((worker * 7 + step * 3 + static_cast<int>(i % 5)) % 16);
}

void push_numbers(Client& client, int step, bool bring = true) {
  fill(client.job().layout, client.gradients(), [&](size_t, size_t i) { return -number(client.worker(), step, i); });
  client.push(whole(client), {.step = step, .lr = 1, .pull = bring}).wait();
}

/// Everything that was acknowledged, once.
void expect_sum(Client& client, int workers, int steps) {
  client.pull(whole(client)).wait();
  for (size_t slot = 0; slot < client.job().layout.size(); slot++)
    for (size_t i = 0; i < client.job().layout[slot].elements(); i++) {
      float sum = 0;
      for (int worker = 0; worker < workers; worker++)
        for (int step = 0; step < steps; step++) sum += number(worker, step, i);
      ASSERT_EQ(floats(client.parameters() + client.job().layout[slot].range.begin)[i], sum)
          << "slot " << slot << " element " << i;
    }
}

/// One of the workers does it while the others ask for nothing.
void at_rest(Client& client, const std::function<void()>& what) {
  static std::atomic<int> done{0};
  const int before = done;
  client.barrier();
  if (client.worker() == 0) {
    what();
    done++;
    done.notify_all();
  }
  done.wait(before);
  client.barrier();
}

Job adding(Job job) {
  job.optimizer = space::sgd({.lr = 1});
  return job;
}

/// Ends servers and begins others in their place while workers go through their steps. It waits until every part is
/// there twice, as what has one copy alone dies with it; workers wait before they leave a tenth of their steps behind
/// them in which nobody was ended yet.
class Killer {
 public:
  static constexpr int kSteps = 50, kEvery = 10;

  explicit Killer(Crew& crew, int servers) : crew_(crew), thread_([this, servers] { run(servers); }) {}
  ~Killer() {
    over_ = true;
    step_ = kSteps;
    step_.notify_all();
    thread_.join();
  }
  /// A worker is at this step.
  void at(int step) {
    int before = step_;
    while (before < step && !step_.compare_exchange_weak(before, step)) continue;
    step_.notify_all();
    if (step % kEvery != kEvery - 1) return;
    for (int kills = kills_; kills < step / kEvery && !over_; kills = kills_) kills_.wait(kills);
  }
  int kills() const { return kills_; }
  std::string fault;

 private:
  void run(int servers) {
    std::mt19937 random(static_cast<unsigned>(servers));
    for (int kill = 1; kill < kSteps / kEvery; kill++) {
      for (int step = step_; step < kill * kEvery && !over_; step = step_) step_.wait(step);
      std::this_thread::sleep_for(std::chrono::microseconds(random() % 3000));
      const Deadline deadline(Seconds(10));
      while (!over_ && !all_there(servers) && !deadline.passed())
        std::this_thread::sleep_for(std::chrono::milliseconds(2));
      if (deadline.passed()) fault = "there are no backups again";
      if (!over_ && fault.empty()) {
        const int server = static_cast<int>(random() % static_cast<unsigned>(servers));
        crew_.end(server);
        crew_.begin(server);
        // One that comes when all others have ended would wait for them.
        while (!over_ && kill + 1 == kSteps / kEvery && !all_there(servers) && !deadline.passed())
          std::this_thread::sleep_for(std::chrono::milliseconds(2));
      }
      kills_++;
      kills_.notify_all();
    }
  }
  bool all_there(int servers) {
    try {
      return crew_.digests().size() == 2 * static_cast<size_t>(servers);
    } catch (const Error&) {  // one is about to begin
      return false;
    }
  }

  Crew& crew_;
  std::atomic<bool> over_{false};
  std::atomic<int> step_{0}, kills_{0};
  std::thread thread_;
};

class Replicas : public testing::TestWithParam<Order> {};

TEST_P(Replicas, BackupsHaveTheSameBits) {
  for (int servers : {2, 3}) {
    Crew crew(2, servers);
    Job job = replicated(2, servers, GetParam());
    job.optimizer = space::adam({});
    if (GetParam() == Order::on_arrival) {
      job.rules.step_updates = 2;
      job.rules.stale = Stale::compensated;
    }
    expect_all_well(run_workers(crew.meeting, job, [&](Client& client) {
      publish(client);
      for (int step = 0; step < 20; step++) push_numbers(client, step);
      at_rest(client, [&] { crew.expect_same(servers); });
    }));
    crew.join();
    expect_all_well(crew.errors);
  }
}

TEST_P(Replicas, ServersThatEndLoseNothing) {
  for (int servers : {2, 3}) {
    Crew crew(2, servers);
    Killer killer(crew, servers);
    expect_all_well(run_workers(crew.meeting, adding(replicated(2, servers, GetParam())), [&](Client& client) {
      publish(client);
      for (int step = 0; step < Killer::kSteps; step++) {
        push_numbers(client, step);
        killer.at(step);
      }
      client.barrier();
      expect_sum(client, 2, Killer::kSteps);
      at_rest(client, [&] { crew.expect_same(servers); });
    }));
    EXPECT_EQ(killer.fault, "");
    EXPECT_EQ(killer.kills(), 4);
    crew.join();
    expect_all_well(crew.errors);
  }
}

std::string name_of(const testing::TestParamInfo<Order>& info) {
  const char* names[] = {"together", "on_arrival", "rotating"};
  return names[static_cast<size_t>(info.param)];
}
INSTANTIATE_TEST_SUITE_P(Orders, Replicas, testing::Values(Order::together, Order::on_arrival, Order::rotating),
                         name_of);

/// Clocks, pieces of work, the lock and the barrier move too.
TEST(ReplicasOf, WorkIsTakenOnceWithinTheBound) {
  Job job = adding(replicated(3, 2, Order::on_arrival));
  job.rules.bound = 1;
  Crew crew(3, 2);
  Killer killer(crew, 2);
  std::vector<std::atomic<int>> taken(2 * Killer::kSteps);
  std::array<std::atomic<int64_t>, 3> clocks{};
  std::atomic<int> inside{0}, crowded{0}, late{0};
  expect_all_well(run_workers(crew.meeting, job, [&](Client& client) {
    publish(client);
    const auto me = static_cast<size_t>(client.worker());
    client.barrier();
    for (Lease lease; (lease = client.take(0, 0, 2 * Killer::kSteps, 2, false)).what == Lease::piece;) {
      clocks[me] = lease.step;
      for (const auto& clock : clocks) late += lease.step - clock > 2;  // one that has not said yet that it goes on
      taken[static_cast<size_t>(lease.index)]++;
      if (client.lock(true)) {
        crowded += inside++ != 0;
        push_numbers(client, static_cast<int>(lease.index));
        inside--;
        client.unlock();
      }
      killer.at(static_cast<int>(lease.step));
    }
    clocks[me] = int64_t{1} << 40;
    client.barrier();
  }));
  for (size_t i = 0; i < taken.size(); i++) EXPECT_EQ(taken[i], 1) << "piece " << i;
  EXPECT_EQ(crowded, 0);
  EXPECT_EQ(killer.kills(), 4);
  EXPECT_EQ(killer.fault, "");
  crew.join();
  expect_all_well(crew.errors);
}

TEST(ReplicasOf, RowsAndHeldGradients) {
  Job job = adding(replicated(2, 3, Order::together));
  job.tables = {{.name = "words",
                 .width = 3,
                 .optimizer = space::sgd({}),
                 .fill = SparseTable::Fill::normal,
                 .evict_after = 1000},
                {.name = "ids", .width = 1, .optimizer = space::adam({})}};
  Crew crew(2, 3);
  Killer killer(crew, 3);
  std::vector<uint64_t> keys;
  for (uint64_t i = 0; i < 200; i++) keys.push_back(i * 0x9e3779b97f4a7c15);
  expect_all_well(run_workers(crew.meeting, job, [&](Client& client) {
    publish(client);
    std::vector<float> before(keys.size() * 3), after(keys.size() * 3), ones(keys.size() * 3, -1.f);
    client.pull_rows(0, keys, before.data()).wait();
    client.barrier();
    for (int step = 0; step < Killer::kSteps; step++) {
      fill(job.layout, client.gradients(), [&](size_t, size_t i) { return -number(client.worker(), step, i); });
      const Pending pushed = client.push(whole(client), {.step = step, .lr = 1, .hold = true});
      pushed.wait();
      if (client.worker() == 0) {
        EXPECT_GT(client.squares(), 0);
        client.apply(1).wait();
      }
      client.pull(whole(client), {.at_least = pushed.version() + 1}).wait();
      client.push_rows(0, keys, ones.data(), 1).wait();
      client.push_rows(1, keys, ones.data(), 0.1).wait();
      killer.at(step);
    }
    client.barrier();
    expect_sum(client, 2, Killer::kSteps);
    client.pull_rows(0, keys, after.data()).wait();
    for (size_t i = 0; i < after.size(); i++) ASSERT_NEAR(after[i], before[i] + 2 * Killer::kSteps, 1e-4);
    at_rest(client, [&] { crew.expect_same(3); });
  }));
  EXPECT_EQ(killer.kills(), 4);
  EXPECT_EQ(killer.fault, "");
  crew.join();
  expect_all_well(crew.errors);
}

/// A model that begins when a server has ended, beside the roll.
TEST(ReplicasOf, LaterModelsAndTheRoll) {
  Crew crew(2, 3);
  const Job roll{.workers = 2, .servers = 3, .replicas = 1};
  std::atomic<int> come{0};
  expect_all_well(run_workers(crew.meeting, roll,
                              [&](Client& on_roll) {
                                for (int model = 0; model < 3; model++) {
                                  Client client(crew.meeting, on_roll.worker(),
                                                adding(replicated(2, 3, Order::together)),
                                                {.model = model, .timeout = kPatience, .in_place = true});
                                  EXPECT_FALSE(client.in_place());
                                  publish(client);
                                  for (int step = 0; step < 5; step++) push_numbers(client, step);
                                  expect_sum(client, 2, 5);
                                  client.barrier();
                                  if (client.worker() == 0 && model < 2) {
                                    const Deadline deadline(kPatience);
                                    while (crew.digests().size() < (model == 0 ? 6u : 5u) && !deadline.passed())
                                      std::this_thread::sleep_for(std::chrono::milliseconds(2));
                                    crew.end(model == 0 ? 0 : 2);
                                    if (model == 0) crew.begin(0);
                                  }
                                  client.barrier();
                                  come++;
                                }
                              },
                              {.model = kRoll, .timeout = kPatience}));
  EXPECT_EQ(come, 6);
  crew.join();
  expect_all_well(crew.errors);
}

TEST(ReplicasOf, APartThatIsLostIsNamed) {
  Crew crew(1, 3);
  const auto outcomes = run_workers(crew.meeting, adding(replicated(1, 3, Order::on_arrival)), [&](Client& client) {
    publish(client);
    push_numbers(client, 0);
    crew.end(0);
    push_numbers(client, 1);
    const Deadline deadline(kPatience);
    while (crew.digests().size() < 6 && !deadline.passed())
      std::this_thread::sleep_for(std::chrono::milliseconds(2));  // server 1 has three parts' worth of them
    crew.end(2);
    push_numbers(client, 2);  // server 1 is alone, and has all
    expect_sum(client, 1, 3);
    crew.end(1);
    push_numbers(client, 3);
  });
  expect_error<PeerLost>(outcomes[0], {"server 1", "no other server has its part", "worker 0"});
}

TEST(ReplicasOf, WhatCannotBeIsRefused) {
  EXPECT_THROW(Server({.servers = 1, .replicas = 1, .meeting = {.job = job_name()}}), InvalidArgument);
  EXPECT_THROW(Server({.servers = 2, .replicas = 2, .meeting = {.job = job_name()}}), InvalidArgument);
  Crew crew(1, 2);
  Job job = small_job(1, 2, Order::on_arrival);
  EXPECT_THROW(Client(crew.meeting, 0, job, {.timeout = Seconds(2)}), InvalidArgument);
  job.replicas = 1;
  const Client client(crew.meeting, 0, job, {.timeout = kPatience});
}

}  // namespace
}  // namespace trireme::ps::tests
