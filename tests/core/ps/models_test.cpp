// label: unit
// Several models on one server, without its network: what they share, and what they do not.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cstring>
#include <deque>
#include <map>

#include <trireme/base/error.h>
#include <trireme/ps/models.h>

namespace trireme::ps::tests {
namespace {

struct Memory final : ModelMemory {
  std::byte* take(int model, size_t bytes) override {
    auto& floats = models[model];
    floats.assign(bytes / sizeof(float) + 16, 0.f);
    return reinterpret_cast<std::byte*>(floats.data());
  }
  void give_back(int model) override { models.erase(model); }
  std::map<int, std::vector<float>> models;
};

struct Recorder final : Connection {
  void reply(const Reply& reply, std::span<const std::byte> data) override {
    answers.push_back(reply);
    text.assign(reinterpret_cast<const char*>(data.data()), data.size());
  }
  std::string name() const override { return fmt::format("worker {} (process {})", worker, 4200 + worker); }
  std::vector<Reply> answers;
  std::string text;  // of the last answer
  uint64_t ids = 0;
};

Job job_of(int64_t elements, Order order = Order::together) {
  Job job{.layout = space::Layout({{fmt::format("w{}", elements), DType::f32, {elements}}}), .workers = 2};
  job.optimizer = space::sgd({.lr = 1});
  job.rules = {.workers = 2, .order = order};
  return job;
}

class ModelsTest : public testing::Test {
 protected:
  /// A worker comes to a model; what it is not admitted for, or "".
  std::string come(int model, int worker, const Job& job) {
    auto [service, refusal] = models.open(model, worker, job.encode());
    if (!refusal.empty()) return refusal;
    auto& connection = connections[{model, worker}] = std::make_shared<Recorder>();
    connection->worker = worker;
    connection->service = service;
    return "";
  }
  void all_come(int model, const Job& job) {
    for (int worker = 0; worker < 2; worker++) ASSERT_EQ(come(model, worker, job), "");
  }
  void on_roll() { all_come(kRoll, {.workers = 2}); }
  Recorder& of(int model, int worker) { return *connections.at({model, worker}); }

  uint64_t ask(int model, int worker, Request request, std::span<const std::byte> data = {}) {
    Recorder& from = of(model, worker);
    request.id = ++from.ids;
    from.service->handle({.from = connections.at({model, worker}), .request = request, .data = data}, {});
    return request.id;
  }
  uint64_t push(int model, int worker, float value, int64_t step = 0) {
    const space::Range range = of(model, worker).service->chunks()[0].range;
    gradient.assign(range.size() / sizeof(float), value);
    const auto data = std::as_bytes(std::span(gradient));
    kept.push_back(gradient);  // until the others come
    return ask(model, worker, {.verb = Verb::push, .step = step, .lr = 1, .begin = range.begin, .bytes = range.size()},
               std::as_bytes(std::span(kept.back())).first(data.size()));
  }
  void leave(int model, int worker, uint8_t flags = 0) { ask(model, worker, {.verb = Verb::leave, .flags = flags}); }
  void die(int worker) {
    for (auto& [place, connection] : connections)
      if (place.second == worker) models.lost(*connection->service, worker, fmt::format("{} died", connection->name()));
  }
  std::string why(int model, int worker, uint64_t id) {
    ask(model, worker, {.verb = Verb::explain, .version = id});
    return of(model, worker).text;
  }

  Helpers helpers{0};
  Memory memory;
  metrics::Registry registry;
  Models models{0, memory, helpers, registry};
  std::map<std::pair<int, int>, std::shared_ptr<Recorder>> connections;
  std::vector<float> gradient;
  std::deque<std::vector<float>> kept;
};

TEST_F(ModelsTest, HaveParametersRulesAndBarriersOfTheirOwn) {
  all_come(0, job_of(16));
  all_come(1, job_of(48, Order::on_arrival));
  push(1, 0, 2.f);
  EXPECT_EQ(memory.models[1][0], -2.f) << "applied when it arrives";
  push(0, 0, 1.f);
  EXPECT_TRUE(of(0, 0).answers.empty()) << "waits for worker 1";
  ask(0, 0, {.verb = Verb::barrier});
  ask(1, 1, {.verb = Verb::barrier});
  EXPECT_TRUE(of(0, 0).answers.empty() && of(1, 1).answers.empty()) << "two barriers, not one";
  push(0, 1, 3.f);
  EXPECT_EQ(memory.models[0][0], -4.f);
  EXPECT_EQ(memory.models[1][0], -2.f);
  ask(0, 0, {.verb = Verb::lock});
  ask(1, 1, {.verb = Verb::lock});
  EXPECT_EQ(of(1, 1).answers.back().status, Status::ok) << "a lock for each model";
}

TEST_F(ModelsTest, AModelThatAllHaveLeftGivesItsMemoryBackAndTheRollKeepsTheServer) {
  on_roll();
  for (int model = 0; model < 3; model++) {
    all_come(model, job_of(16 + 16 * model));
    EXPECT_TRUE(memory.models.contains(model));
    leave(model, 0);
    EXPECT_TRUE(memory.models.contains(model));
    leave(model, 1);
    EXPECT_FALSE(memory.models.contains(model));
    EXPECT_FALSE(models.finished()) << "another model may come";
  }
  push(2, 0, 1.f);
  EXPECT_EQ(of(2, 0).answers.back().status, Status::invalid) << "nothing is left of it";
  leave(kRoll, 0);
  EXPECT_FALSE(models.finished());
  leave(kRoll, 1);
  EXPECT_TRUE(models.finished());
  EXPECT_EQ(models.failure(), "");
}

TEST_F(ModelsTest, WithoutARollTheLastOneEndsTheServer) {
  all_come(0, job_of(16));
  leave(0, 0);
  leave(0, 1);
  EXPECT_TRUE(models.finished());
}

TEST_F(ModelsTest, WhoDiesIsLostToAllModelsAlsoToThoseItHasNotComeTo) {
  on_roll();
  all_come(0, job_of(16));
  ASSERT_EQ(come(1, 0, job_of(32)), "");
  push(0, 0, 1.f);
  push(1, 0, 1.f);
  die(1);
  for (int model : {0, 1}) {
    ASSERT_EQ(of(model, 0).answers.size(), 1u) << model;
    EXPECT_EQ(of(model, 0).answers[0].status, Status::peer_lost);
    EXPECT_EQ(of(model, 0).text, "worker 1 (process 4201) died");
  }
  ASSERT_EQ(come(2, 0, job_of(48)), "") << "made when it is known already";
  ask(2, 0, {.verb = Verb::barrier});
  EXPECT_EQ(of(2, 0).answers.back().status, Status::peer_lost);
  EXPECT_EQ(of(2, 0).text, "worker 1 (process 4201) died");
  EXPECT_NE(come(2, 1, job_of(48)), "") << "a dead worker does not come back";
  for (int model : {0, 1, 2, kRoll}) leave(model, 0, kVictim);
  EXPECT_TRUE(models.finished());
  EXPECT_EQ(models.failure(), "worker 1 (process 4201) died");
}

TEST_F(ModelsTest, WhoHasLeftTheJobComesToNoModel) {
  on_roll();
  ASSERT_EQ(come(0, 0, job_of(16)), "");
  ask(0, 0, {.verb = Verb::barrier});
  leave(kRoll, 1);
  EXPECT_EQ(of(0, 0).answers.back().status, Status::peer_lost);
  EXPECT_NE(of(0, 0).text.find("worker 1 has ended its part of the job"), std::string::npos);
  leave(0, 0);
  leave(kRoll, 0);
  EXPECT_TRUE(models.finished());
}

TEST_F(ModelsTest, AProgramThatEndsOutsideOfModelsFailsNothing) {
  on_roll();
  all_come(0, job_of(16));
  for (int worker : {0, 1}) leave(0, worker);
  for (int worker : {0, 1}) die(worker);
  EXPECT_TRUE(models.finished());
  EXPECT_EQ(models.failure(), "");
}

TEST_F(ModelsTest, AnErrorInOneModelThatIsCaughtEndsThatModelAlone) {
  on_roll();
  all_come(0, job_of(16));
  leave(0, 0, kFailed);
  leave(0, 1);
  all_come(1, job_of(32));
  push(1, 0, 1.f);
  push(1, 1, 1.f);
  EXPECT_EQ(of(1, 0).answers.back().status, Status::ok);
  for (int model : {1, kRoll})
    for (int worker : {0, 1}) leave(model, worker);
  EXPECT_TRUE(models.finished());
  EXPECT_EQ(models.failure(), "");
}

TEST_F(ModelsTest, WhoRestsInOneModelHoldsNobodyBackInAnother) {
  Job bounded = job_of(32, Order::on_arrival);
  bounded.rules.bound = 1;
  all_come(0, job_of(16, Order::on_arrival));
  all_come(1, bounded);
  for (int worker : {0, 1}) ask(1, worker, {.verb = Verb::begin, .step = 0});
  ask(1, 0, {.verb = Verb::begin, .step = 2});
  EXPECT_EQ(of(1, 0).answers.size(), 1u) << "two steps ahead of worker 1";
  ask(0, 1,
      {.verb = Verb::take, .step = 0, .version = 0, .bytes = 0, .extra = 2});  // the epoch has nothing more for it
  EXPECT_EQ(of(0, 1).answers.back().status, Status::end);
  EXPECT_EQ(of(1, 0).answers.size(), 2u);
  ask(1, 1, {.verb = Verb::begin, .step = 1});
  ask(1, 0, {.verb = Verb::begin, .step = 3});
  EXPECT_EQ(of(1, 0).answers.size(), 2u) << "it goes on, and counts again";
  ask(0, 1, {.verb = Verb::barrier});
  EXPECT_EQ(of(1, 0).answers.size(), 3u);
}

TEST_F(ModelsTest, SaysWhoIsWaitedFor) {
  all_come(0, job_of(16));
  EXPECT_EQ(why(0, 0, push(0, 0, 1.f, 12)), "worker 1 has not pushed its gradient of 'w16' for step 12");
  all_come(1, job_of(32, Order::rotating));
  EXPECT_EQ(why(1, 1, push(1, 1, 1.f, 3)), "worker 0 has not pushed its gradient of 'w32' of model 1 for step 3");
  EXPECT_EQ(why(1, 0, ask(1, 0, {.verb = Verb::barrier})), "worker 1 has not come to the barrier of model 1");
  Job bounded = job_of(48, Order::on_arrival);
  bounded.rules.bound = 1;
  all_come(2, bounded);
  EXPECT_EQ(why(2, 1, ask(2, 1, {.verb = Verb::begin, .step = 5})),
            "worker 1 may not begin step 5 of model 2 yet: it would be 5 steps ahead of worker 0");
  EXPECT_EQ(why(2, 1, 99), "") << "of a request that nobody has seen";
}

TEST_F(ModelsTest, ControlNamesTheModelsWhereThereAreSeveral) {
  EXPECT_THROW(models.control("delay 1 50"), InvalidArgument) << "before anybody has come";
  on_roll();
  all_come(0, job_of(16, Order::on_arrival));
  EXPECT_EQ(models.control("delay 1 50"), "server 0: updates of worker 1 are delayed by 50 ms");
  all_come(1, job_of(32, Order::on_arrival));
  EXPECT_EQ(models.control("delay 0 5 1"), "server 0, model 1: updates of worker 0 are delayed by 5 ms");
  push(0, 0, 1.f);
  EXPECT_EQ(of(0, 0).answers.size(), 1u) << "in model 0 it is not";
  push(1, 0, 1.f);
  EXPECT_TRUE(of(1, 0).answers.empty());
  for (const char* nonsense : {"delay 0 5 2", "delay 0 5 x", "delay 0 5 -1", "delay 0 5 1 1", "stop"})
    EXPECT_THROW(models.control(nonsense), InvalidArgument) << nonsense;
}

TEST_F(ModelsTest, RefusesNumbersThatCannotBe) {
  for (int model : {-2, 1 << 16, -1000}) EXPECT_NE(come(model, 0, job_of(16)), "") << model;
  EXPECT_NE(models.open(0, 0, "nonsense").refusal, "");
  EXPECT_TRUE(models.empty()) << "what describes nothing leaves nothing";
  all_come(0, job_of(16));
  EXPECT_NE(come(0, 0, job_of(17)).find("the workers disagree"), std::string::npos);
}

}  // namespace
}  // namespace trireme::ps::tests
