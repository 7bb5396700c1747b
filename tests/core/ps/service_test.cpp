// label: unit
// The server without its network: requests in, answers out.
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>

#include <trireme/base/error.h>
#include <trireme/ps/service.h>

namespace trireme::ps::tests {
namespace {

using space::Layout;

struct Answer {
  Reply reply;
  std::vector<std::byte> data;
  std::string text() const { return {reinterpret_cast<const char*>(data.data()), data.size()}; }
};

struct Recorder final : Connection {
  void reply(const Reply& reply, std::span<const std::byte> data) override {
    answers.push_back({reply, {data.begin(), data.end()}});
  }
  std::string name() const override { return fmt::format("worker {}", worker); }
  std::vector<Answer> answers;
};

Job job_with(int workers, Order order) {
  Job job{.layout = Layout({{"w", DType::f32, {40}}, {"b", DType::f32, {7}}}),
          .workers = workers,
          .bucket_bytes = 128,
          .chunk_bytes = 128};
  job.optimizer = space::sgd({.lr = 1});
  job.rules = {.workers = workers, .order = order};
  job.tables = {{.name = "t", .width = 2, .optimizer = space::sgd({})}};
  return job;
}

class ServiceTest : public testing::Test {
 protected:
  void start(const Job& job) {
    job_ = job;
    const auto memory = [this](size_t bytes) {
      memory_.assign(bytes / sizeof(float) + 16, 0.f);
      return reinterpret_cast<std::byte*>(memory_.data());
    };
    service = std::make_unique<Service>(0, memory, helpers_, registry);
    for (int worker = 0; worker < job.workers; worker++) {
      workers.push_back(std::make_shared<Recorder>());
      EXPECT_EQ(service->open(worker, job.encode()), "");
      workers.back()->worker = worker;
      gradients_.emplace_back(64, 0.f);
    }
  }
  float* parameters() { return memory_.data(); }

  Request push_request(int worker, uint32_t chunk, int64_t step = 0, double lr = 1) {
    const auto& range = service->chunks()[chunk].range;
    return {.id = ++ids_[worker],
            .verb = Verb::push,
            .chunk = chunk,
            .step = step,
            .lr = lr,
            .begin = range.begin,
            .bytes = range.size()};
  }
  void push(int worker, const Request& request, float value) {
    std::vector<float>& own = gradients_[static_cast<size_t>(worker)];
    std::fill(own.begin(), own.end(), value);
    handle(worker, request, {reinterpret_cast<const std::byte*>(own.data()), request.bytes});
  }
  void handle(int worker, const Request& request, std::span<const std::byte> data = {}) {
    service->handle({.from = workers[static_cast<size_t>(worker)], .request = request, .data = data}, now);
  }
  Recorder& of(int worker) { return *workers[static_cast<size_t>(worker)]; }
  Answer last(int worker) { return of(worker).answers.back(); }

  std::unique_ptr<Service> service;
  std::vector<std::shared_ptr<Recorder>> workers;
  Clock::time_point now{};
  std::map<int, uint64_t> ids_;
  metrics::Registry registry;

 private:
  Job job_;
  Helpers helpers_{0};
  std::vector<float> memory_;
  std::vector<std::vector<float>> gradients_;
};

TEST_F(ServiceTest, TogetherAppliesTheSumOnce) {
  start(job_with(2, Order::together));
  push(0, push_request(0, 0), 1.f);
  EXPECT_TRUE(of(0).answers.empty());
  push(1, push_request(1, 0), 2.f);
  ASSERT_EQ(of(0).answers.size(), 1u);
  ASSERT_EQ(of(1).answers.size(), 1u);
  const size_t at = service->chunks()[0].range.begin / sizeof(float);
  EXPECT_EQ(parameters()[at], -3.f);
}

TEST_F(ServiceTest, ARepeatedPushIsAppliedOnceAndAnsweredAgain) {
  start(job_with(1, Order::on_arrival));
  const Request request = push_request(0, 0);
  push(0, request, 1.f);
  push(0, request, 1.f);
  EXPECT_EQ(of(0).answers.size(), 2u);
  EXPECT_EQ(last(0).reply.version, 1u);
  EXPECT_EQ(parameters()[service->chunks()[0].range.begin / sizeof(float)], -1.f);
}

TEST_F(ServiceTest, ARepeatedPushThatWaitsIsNotCountedTwice) {
  start(job_with(2, Order::together));
  const Request request = push_request(0, 0);
  push(0, request, 1.f);
  push(0, request, 1.f);
  push(1, push_request(1, 0), 2.f);
  EXPECT_EQ(of(0).answers.size(), 1u);
  EXPECT_EQ(parameters()[service->chunks()[0].range.begin / sizeof(float)], -3.f);
}

TEST_F(ServiceTest, RotatingAppliesInOrder) {
  start(job_with(3, Order::rotating));
  push(2, push_request(2, 0), 4.f);
  push(1, push_request(1, 0), 2.f);
  EXPECT_TRUE(of(1).answers.empty());
  push(0, push_request(0, 0), 1.f);
  EXPECT_EQ(last(0).reply.version, 1u);
  EXPECT_EQ(last(1).reply.version, 2u);
  EXPECT_EQ(last(2).reply.version, 3u);
  push(1, push_request(1, 0), 2.f);
  EXPECT_EQ(of(1).answers.size(), 1u);  // it is worker 0's turn again
}

TEST_F(ServiceTest, StaleGradientsCountLess) {
  Job job = job_with(2, Order::on_arrival);
  job.rules.stale = Stale::inverse;
  start(job);
  Request with_pull = push_request(0, 0);
  with_pull.flags = kAnswerWithParameters;
  push(0, with_pull, 1.f);  // worker 0 is up to date, worker 1 is one update behind
  push(1, push_request(1, 0), 1.f);
  EXPECT_FLOAT_EQ(parameters()[service->chunks()[0].range.begin / sizeof(float)], -1.5f);
}

TEST_F(ServiceTest, WorkersHaveAStateOfTheirOwnWhereUpdatesAreShares) {
  for (int shares : {1, 2}) {
    Job job = job_with(2, Order::on_arrival);
    job.optimizer = space::momentum({.lr = 1, .momentum = 0.5});
    job.rules.step_updates = shares;
    workers.clear();
    start(job);
    for (int worker : {0, 1, 0, 1}) push(worker, push_request(worker, 0), 1.f);
    const float one_momentum = 1 + 1.5f + 1.75f + 1.875f, two_momenta = 2 * (1 + 1.5f);
    EXPECT_FLOAT_EQ(parameters()[service->chunks()[0].range.begin / sizeof(float)],
                    shares == 1 ? -one_momentum : -two_momenta);
  }
}

TEST_F(ServiceTest, CompensatesForWhatHasChangedSinceThePull) {
  Job job = job_with(2, Order::on_arrival);
  job.rules.stale = Stale::compensated;
  job.rules.lambda = 0.5;
  start(job);
  const size_t at = service->chunks()[0].range.begin / sizeof(float);
  for (int worker : {0, 1})
    handle(worker, {.id = ++ids_[worker],
                    .verb = Verb::pull,
                    .chunk = 0,
                    .step = -1,
                    .begin = service->chunks()[0].range.begin,
                    .bytes = service->chunks()[0].range.size()});
  push(0, push_request(0, 0), 1.f);  // θ = -1
  push(1, push_request(1, 0), 2.f);  // g = 2 + 0.5 · 4 · (-1 - 0) = 0
  EXPECT_FLOAT_EQ(parameters()[at], -1.f);
}

TEST_F(ServiceTest, DelaysAWorkersUpdates) {
  start(job_with(2, Order::on_arrival));
  EXPECT_NE(service->control("delay 1 50").find("worker 1"), std::string::npos);
  push(1, push_request(1, 0), 1.f);
  EXPECT_TRUE(of(1).answers.empty());
  ASSERT_TRUE(service->due());
  EXPECT_EQ(*service->due(), now + std::chrono::milliseconds(50));
  service->tick(now + std::chrono::milliseconds(49));
  EXPECT_TRUE(of(1).answers.empty());
  service->tick(now + std::chrono::milliseconds(50));
  EXPECT_EQ(of(1).answers.size(), 1u);
  push(0, push_request(0, 0), 1.f);
  EXPECT_EQ(of(0).answers.size(), 1u);
  for (const char* nonsense : {"delay", "delay 2 5", "delay 0 -1", "delay 0 1e9", "delay 0 5 5", "stop", ""})
    EXPECT_THROW(service->control(nonsense), InvalidArgument) << nonsense;
}

TEST_F(ServiceTest, TheFastWaitForTheSlowWithinTheBound) {
  Job job = job_with(2, Order::on_arrival);
  job.rules.bound = 1;
  start(job);
  const auto begin = [&](int worker, int64_t step) {
    handle(worker, {.id = ++ids_[worker], .verb = Verb::begin, .step = step});
  };
  begin(0, 0);
  begin(1, 0);
  begin(0, 1);
  EXPECT_EQ(of(0).answers.size(), 2u);
  begin(0, 2);
  EXPECT_EQ(of(0).answers.size(), 2u);  // worker 1 is at 0
  begin(1, 1);
  EXPECT_EQ(of(0).answers.size(), 3u);
}

TEST_F(ServiceTest, AllStopBeforeTheSameStep) {
  start(job_with(3, Order::rotating));
  const auto begin = [&](int worker, int64_t step, uint8_t flags = 0) {
    handle(worker, {.id = ++ids_[worker], .verb = Verb::begin, .flags = flags, .step = step});
    return last(worker).reply.status;
  };
  EXPECT_EQ(begin(0, 4), Status::ok);
  EXPECT_EQ(begin(1, 6), Status::ok);
  EXPECT_EQ(begin(0, 5, kStop), Status::ok);  // worker 1 has begun step 6: all do it
  EXPECT_EQ(begin(0, 6), Status::ok);
  EXPECT_EQ(begin(1, 7), Status::stopped);
  EXPECT_EQ(begin(2, 6), Status::ok);
  EXPECT_EQ(begin(2, 7), Status::stopped);
  EXPECT_EQ(begin(0, 7), Status::stopped);
}

TEST_F(ServiceTest, WhoWaitsForADeadWorkerIsTold) {
  start(job_with(3, Order::together));
  push(0, push_request(0, 0), 1.f);
  handle(2, {.id = ++ids_[2], .verb = Verb::barrier});
  service->gone(1, {"worker 1 (process 42) died"});
  for (int worker : {0, 2}) {
    EXPECT_EQ(last(worker).reply.status, Status::peer_lost);
    EXPECT_EQ(last(worker).text(), "worker 1 (process 42) died");
  }
  push(2, push_request(2, 0), 1.f);
  EXPECT_EQ(last(2).reply.status, Status::peer_lost);
  EXPECT_EQ(service->failure(), "worker 1 (process 42) died");
}

TEST_F(ServiceTest, OthersGoOnWhereNobodyWaits) {
  start(job_with(2, Order::on_arrival));
  handle(1, {.id = ++ids_[1], .verb = Verb::lock});
  EXPECT_EQ(last(1).reply.status, Status::ok);
  handle(0, {.id = ++ids_[0], .verb = Verb::lock});
  EXPECT_EQ(last(0).reply.status, Status::denied);
  service->gone(1, {"worker 1 died"});
  handle(0, {.id = ++ids_[0], .verb = Verb::lock});
  EXPECT_EQ(last(0).reply.status, Status::ok);  // the dead do not keep locks
  push(0, push_request(0, 0), 1.f);
  EXPECT_EQ(last(0).reply.status, Status::ok);
}

Request holding(Request request) {
  request.flags = kHold;
  return request;
}

/// Gradients of 3 + 4 = 7 everywhere.
TEST_F(ServiceTest, HeldGradientsCountWhenTheirFactorIsKnown) {
  start(job_with(2, Order::together));
  const auto chunks = static_cast<uint32_t>(service->chunks().size());
  for (uint32_t chunk = 0; chunk < chunks; chunk++) push(0, holding(push_request(0, chunk)), 3.f);
  EXPECT_TRUE(of(0).answers.empty());
  handle(0, {.id = ++ids_[0], .verb = Verb::norm});
  EXPECT_EQ(last(0).reply.status, Status::invalid);  // worker 1's are not there
  for (uint32_t chunk = 0; chunk < chunks; chunk++) push(1, holding(push_request(1, chunk)), 4.f);
  EXPECT_EQ(of(1).answers.size(), chunks);
  EXPECT_EQ(parameters()[0], 0) << "held";
  handle(0, {.id = ++ids_[0], .verb = Verb::norm});
  size_t elements = 0;
  for (const Chunk& chunk : service->chunks()) elements += chunk.range.size() / sizeof(float);
  EXPECT_EQ(std::bit_cast<double>(last(0).reply.value), 49.0 * static_cast<double>(elements));

  const auto& range = service->chunks()[0].range;
  const Request wait{.id = ++ids_[1],
                     .verb = Verb::pull,
                     .chunk = 0,
                     .step = -1,
                     .version = 1,
                     .begin = range.begin,
                     .bytes = range.size()};
  handle(1, wait);
  EXPECT_EQ(of(1).answers.size(), chunks);
  const Request apply{.id = ++ids_[0], .verb = Verb::apply, .lr = 0.5};
  for (int times = 0; times < 2; times++) {  // sent again, it is applied once
    handle(0, apply);
    EXPECT_EQ(last(0).reply.status, Status::ok);
  }
  for (size_t i = 0; i < 40; i++) EXPECT_EQ(parameters()[i], -3.5f);
  EXPECT_EQ(last(1).reply.version, 1u);
  EXPECT_EQ(last(1).reply.flawed, 0u);
}

TEST_F(ServiceTest, AFactorOfNothingLeavesTheParameters) {
  start(job_with(1, Order::together));
  for (uint32_t chunk = 0; chunk < service->chunks().size(); chunk++)
    push(0, holding(push_request(0, chunk)), std::nanf(""));
  handle(0, {.id = ++ids_[0], .verb = Verb::norm});
  EXPECT_TRUE(std::isnan(std::bit_cast<double>(last(0).reply.value)));
  for (double wrong : {-0.5, 1.5, std::nan("")}) {
    handle(0, {.id = ++ids_[0], .verb = Verb::apply, .lr = wrong});
    EXPECT_EQ(last(0).reply.status, Status::invalid);
  }
  handle(0, {.id = ++ids_[0], .verb = Verb::apply, .lr = 0});
  for (size_t i = 0; i < 47; i++) EXPECT_EQ(parameters()[i], 0);
  handle(0, {.id = ++ids_[0],
             .verb = Verb::pull,
             .chunk = 0,
             .step = -1,
             .version = 1,
             .begin = service->chunks()[0].range.begin,
             .bytes = 4});
  EXPECT_EQ(last(0).reply.status, Status::ok);
  EXPECT_EQ(last(0).reply.flawed, 1u);
}

TEST_F(ServiceTest, HeldGradientsOfALostWorkerAreNotApplied) {
  start(job_with(2, Order::together));
  for (uint32_t chunk = 0; chunk < service->chunks().size(); chunk++)
    for (int worker : {0, 1}) push(worker, holding(push_request(worker, chunk)), 1.f);
  const size_t answers = of(0).answers.size();
  service->gone(1, {"worker 1 died"});
  EXPECT_EQ(of(0).answers.size(), answers) << "what was answered is not answered again";
  handle(0, {.id = ++ids_[0], .verb = Verb::apply, .lr = 1});
  EXPECT_EQ(last(0).reply.status, Status::peer_lost);
  EXPECT_EQ(parameters()[0], 0);
}

TEST_F(ServiceTest, AWatchedPushIsAppliedWhereItIsFinite) {
  for (Order order : {Order::together, Order::on_arrival, Order::rotating}) {
    workers.clear();
    ids_.clear();
    start(job_with(1, order));
    Request request = push_request(0, 0);
    request.flags = kWatch;
    push(0, request, std::numeric_limits<float>::infinity());
    EXPECT_EQ(last(0).reply.flawed, 1u);
    EXPECT_EQ(parameters()[service->chunks()[0].range.begin / sizeof(float)], 0);
    request.id = ++ids_[0];
    push(0, request, 1.f);
    EXPECT_EQ(last(0).reply.flawed, 0u);
    EXPECT_EQ(parameters()[service->chunks()[0].range.begin / sizeof(float)], -1);
  }
}

TEST_F(ServiceTest, CountsInItsStatus) {
  start(job_with(2, Order::on_arrival));
  push(0, push_request(0, 0), 1.f);
  push(1, push_request(1, 0), 1.f);
  const metrics::Snapshot counted = registry.snapshot();
  EXPECT_EQ(counted.total("pushes").value, 2);
  EXPECT_EQ(counted.total("pushed_bytes").value, 2 * static_cast<double>(service->chunks()[0].range.size()));
  EXPECT_EQ(counted.total("updates").value, 2);
  EXPECT_EQ(counted.total("staleness").most, 1);
  EXPECT_EQ(counted.total("staleness").count(), 2);
  handle(0, {.id = ++ids_[0], .verb = Verb::begin, .step = 7});
  const auto json = nlohmann::json::parse(registry.snapshot().json());
  EXPECT_EQ(json["model 0, worker 0"]["clock"], 7);
  EXPECT_EQ(json["model 0, worker 1"]["clock"], 0);
}

/// Nothing that a worker can say crashes the server, changes what it must not, or is left without an answer or a reason
/// to wait.
TEST_F(ServiceTest, SurvivesAHundredThousandRandomRequests) {
  double refused = 0;
  std::mt19937_64 random(7);
  for (Order order : {Order::together, Order::on_arrival, Order::rotating}) {
    workers.clear();
    ids_.clear();
    start(job_with(2, order));
    std::vector<float> data(4096, 1.f);
    const auto some = [&](uint64_t most) { return random() % 4 == 0 ? random() : random() % most; };
    for (int i = 0; i < 34'000; i++) {
      Request r{.id = some(64) + (random() % 2 == 0 ? ids_[0]++ : 0),
                .verb = static_cast<Verb>(random() % (static_cast<uint64_t>(Verb::count) + 1)),
                .flags = static_cast<uint8_t>(random()),
                .table = static_cast<uint16_t>(some(2)),
                .chunk = static_cast<uint32_t>(some(4)),
                .step = static_cast<int64_t>(some(8)),
                .lr = random() % 8 == 0 ? std::nan("") : 0.0,
                .version = some(8),
                .begin = some(256),
                .bytes = some(256),
                .extra = some(4)};
      if (r.verb == Verb::leave) continue;  // the worker is needed for the rest
      size_t size = some(300);
      if (random() % 2 == 0) size = r.bytes;
      if (r.verb == Verb::sparse_push && random() % 2 == 0) size = r.version * 16;
      if (r.verb == Verb::sparse_pull && random() % 2 == 0) size = r.version * 8;
      if (size > data.size() * sizeof(float)) size = 0;
      const int worker = static_cast<int>(random() % 2);
      workers[static_cast<size_t>(worker)]->answers.clear();
      handle(worker, r, {reinterpret_cast<const std::byte*>(data.data()), size});
    }
    EXPECT_GT(registry.snapshot().total("refused").value - refused, 1000);
    refused = registry.snapshot().total("refused").value;
    for (size_t i = 0; i < 47; i++) EXPECT_TRUE(std::isfinite(parameters()[i]));
  }
}

TEST(JobText, RoundTrips) {
  const Job job = job_with(3, Order::rotating);
  EXPECT_EQ(Job::decode(job.encode()).encode(), job.encode());
}

TEST(JobText, RefusesAHundredThousandDamagedTexts) {
  const std::string good = job_with(3, Order::rotating).encode();
  std::mt19937_64 random(11);
  int accepted = 0;
  for (int i = 0; i < 100'000; i++) {
    std::string text = good;
    for (uint64_t change = random() % 4 + 1; change > 0; change--) {
      const size_t at = random() % text.size();
      switch (random() % 4) {
        case 0:
          text[at] = static_cast<char>(random());
          break;
        case 1:
          text.erase(at, random() % 20);
          break;
        case 2:
          text.insert(at, std::to_string(static_cast<int64_t>(random())));
          break;
        default:
          text[at] = static_cast<char>('0' + random() % 10);
      }
      if (text.empty()) text.assign(1, '{');
    }
    try {
      const Job job = Job::decode(text);
      EXPECT_GE(job.workers, 1);
      accepted++;
    } catch (const InvalidArgument&) {
    }
  }
  EXPECT_LT(accepted, 100'000);
}

}  // namespace
}  // namespace trireme::ps::tests
