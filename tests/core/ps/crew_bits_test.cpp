// label: unit
// With helpers or without, a server gives the same bits.
#include <gtest/gtest.h>

#include <cstring>
#include <random>

#include <trireme/ps/service.h>

#include "servers.h"

namespace trireme::ps::tests {
namespace {

/// Odd sizes, larger than what is left to one thread.
space::Layout large_model(DType type) {
  return space::Layout(
      {{"first", type, {333'337}}, {"bias", type, {3}}, {"second", type, {101, 1'009}}, {"third", type, {70'001}}});
}

Job large_job(DType type, const space::UpdaterOptions& optimizer, int workers, Order order) {
  Job job{.layout = large_model(type), .workers = workers, .bucket_bytes = 4 << 20, .chunk_bytes = 1'000'000};
  job.optimizer = optimizer;
  job.rules = {.workers = workers, .order = order};
  return job;
}

const std::vector<space::UpdaterOptions>& optimizers() {
  static const std::vector<space::UpdaterOptions> all = {space::sgd({.weight_decay = 0.01}),
                                                         space::momentum({}),
                                                         space::momentum({.nesterov = true}),
                                                         space::adagrad({}),
                                                         space::adam({}),
                                                         space::adamw({.weight_decay = 0.1})};
  return all;
}

std::vector<std::byte> random_flat(const space::Layout& layout, uint64_t seed) {
  std::vector<std::byte> flat(layout.bytes());
  std::mt19937_64 random(seed);
  std::normal_distribution<double> normal;
  for (size_t slot = 0; slot < layout.size(); slot++)
    for (size_t i = 0; i < layout[slot].elements(); i++) {
      std::byte* at = flat.data() + layout[slot].range.begin;
      const double value = normal(random);
      if (layout[slot].dtype == DType::f64)
        reinterpret_cast<double*>(at)[i] = value;
      else
        reinterpret_cast<float*>(at)[i] = static_cast<float>(value);
    }
  return flat;
}

struct Deaf final : Connection {
  void reply(const Reply& reply, std::span<const std::byte> data) override {
    EXPECT_EQ(reply.status, Status::ok) << std::string(reinterpret_cast<const char*>(data.data()), data.size());
  }
  std::string name() const override { return "a worker"; }
};

/// The parameters after three steps of all workers. With `gaps`, not everybody has a gradient for everything.
std::vector<std::byte> parameters_after(const Job& job, int helpers, bool gaps) {
  std::vector<std::byte> flat;
  Helpers hands(helpers);
  const auto memory = [&](size_t bytes) {
    flat = random_flat(job.layout, 1);
    EXPECT_EQ(flat.size(), bytes);
    return flat.data();
  };
  metrics::Registry registry;
  Service service(0, memory, hands, registry);
  uint64_t id = 0;
  for (int worker = 0; worker < job.workers; worker++) EXPECT_EQ(service.open(worker, job.encode()), "");
  for (int64_t step = 0; step < 3; step++)
    for (int worker = 0; worker < job.workers; worker++) {
      const auto from = std::make_shared<Deaf>();
      from->worker = worker;
      const auto gradients = std::make_shared<std::vector<std::byte>>(
          random_flat(job.layout, 100 + static_cast<uint64_t>(10 * step + worker)));
      const auto present = std::make_shared<std::vector<uint8_t>>(job.layout.size(), uint8_t{1});
      if (gaps) (*present)[static_cast<size_t>(worker + step) % present->size()] = 0;
      for (const Chunk& chunk : service.chunks()) {
        const Request push{.id = ++id,
                           .verb = Verb::push,
                           .chunk = chunk.index,
                           .step = step,
                           .lr = 0.1,
                           .begin = chunk.range.begin,
                           .bytes = chunk.range.size()};
        service.handle(
            {.from = from,
             .request = push,
             .data = {gradients->data() + chunk.range.begin, chunk.range.size()},
             .present = present->data() + chunk.first,
             .keep = std::make_shared<std::pair<decltype(gradients), decltype(present)>>(gradients, present)},
            {});
      }
    }
  return flat;
}

TEST(CrewBits, EveryOptimizerGivesTheSameBits) {
  for (const auto& optimizer : optimizers())
    for (DType type : {DType::f32, DType::f64}) {
      const Job job = large_job(type, optimizer, 1, Order::on_arrival);
      const auto alone = parameters_after(job, 0, false), helped = parameters_after(job, 3, false);
      EXPECT_NE(alone, random_flat(job.layout, 1));
      EXPECT_EQ(std::memcmp(alone.data(), helped.data(), alone.size()), 0)
          << name_of(optimizer.kind) << " " << name_of(type);
    }
}

TEST(CrewBits, SumsOfWorkersWithAndWithoutGaps) {
  for (DType type : {DType::f32, DType::f64})
    for (bool gaps : {false, true}) {
      const Job job = large_job(type, space::adam({}), 3, Order::together);
      const auto alone = parameters_after(job, 0, gaps), helped = parameters_after(job, 2, gaps);
      EXPECT_NE(alone, random_flat(job.layout, 1));
      EXPECT_EQ(std::memcmp(alone.data(), helped.data(), alone.size()), 0)
          << name_of(type) << (gaps ? " with gaps" : "");
    }
}

/// Through shared memory, where a pull is copied by helpers too: what the worker sees after each push and pull.
std::vector<std::vector<std::byte>> seen_by_a_worker(const Job& job, int helpers) {
  const Meeting meeting{.job = job_name()};
  Server server({.workers = 1, .servers = 1, .meeting = meeting, .timeout = Seconds(20), .helpers = helpers});
  std::exception_ptr error;
  std::thread thread([&] {
    try {
      server.run();
    } catch (...) {
      error = std::current_exception();
    }
  });
  std::vector<std::vector<std::byte>> seen;
  const auto outcomes = run_workers(meeting, job, [&](Client& client) {
    const auto put = [&](std::byte* to, uint64_t seed) {
      const auto flat = random_flat(job.layout, seed);
      std::memcpy(to, flat.data(), flat.size());
    };
    const auto look = [&] { seen.emplace_back(client.parameters(), client.parameters() + job.layout.bytes()); };
    put(client.parameters(), 1);
    client.set(whole(client)).wait();
    for (int64_t step = 0; step < 4; step++) {
      put(client.gradients(), 100 + static_cast<uint64_t>(step));
      client.push(whole(client), {.step = step, .lr = 0.1, .pull = step % 2 == 0}).wait();
      if (step % 2 != 0) client.pull(whole(client)).wait();
      look();
    }
    const space::Range part{64, 64 + 700'004};  // neither begins nor ends with a chunk
    client.push(part, {.step = 4, .lr = 0.1}).wait();
    std::memset(client.parameters(), 0, job.layout.bytes());
    client.pull(part).wait();
    look();
  });
  thread.join();
  expect_all_well(outcomes);
  EXPECT_EQ(error, nullptr);
  return seen;
}

TEST(CrewBits, AWorkerSeesTheSameThroughSharedMemory) {
  const Job job = large_job(DType::f32, space::momentum({}), 1, Order::on_arrival);
  const auto alone = seen_by_a_worker(job, 0), helped = seen_by_a_worker(job, 3);
  ASSERT_EQ(alone.size(), 5u);
  EXPECT_EQ(alone, helped);
  EXPECT_NE(alone[0], alone[1]);
}

TEST(Helpers, AreAsManyAsThereAreCoresToSpare) {
  EXPECT_EQ(helpers_for(1, 1, 1), 0);
  EXPECT_EQ(helpers_for(1, 1, 2), 1);  // the worker waits meanwhile
  EXPECT_EQ(helpers_for(2, 1, 2), 0);  // the other worker computes
  EXPECT_EQ(helpers_for(1, 2, 2), 0);  // each server has the core that it needs, and no more
  EXPECT_EQ(helpers_for(2, 1, 4), 2);
  EXPECT_EQ(helpers_for(4, 2, 16), 3);  // memory is not faster with more
  EXPECT_EQ(helpers_for(1, 2, 8), 3);
  EXPECT_EQ(helpers_for(1, 2, 5), 1);  // each of the two has one
  EXPECT_EQ(helpers_for(64, 4, 16), 0);
}

TEST(Helpers, NeedAWorkersCoreWhereThereIsNoOther) {
  EXPECT_FALSE(lends_core(1, 1, 1));
  EXPECT_TRUE(lends_core(1, 1, 2));
  EXPECT_FALSE(lends_core(2, 1, 2));  // no helpers
  EXPECT_TRUE(lends_core(2, 1, 4));
  EXPECT_FALSE(lends_core(1, 1, 8));
}

}  // namespace
}  // namespace trireme::ps::tests
