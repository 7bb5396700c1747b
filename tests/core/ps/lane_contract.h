#pragma once
// The contract of lanes: the same requests, the same answers, whichever way they travel. One line instantiates it.
#include <cmath>

#include "servers.h"

namespace trireme::ps::tests {
namespace {

class LaneContract : public testing::TestWithParam<std::tuple<Way, int, int>> {
 protected:
  Way way() const { return std::get<0>(GetParam()); }
  int workers() const { return std::get<1>(GetParam()); }
  int servers() const { return std::get<2>(GetParam()); }
};

float start(size_t slot, size_t i) { return static_cast<float>(slot) + 0.001f * static_cast<float>(i); }
float gradient(int worker, int step, size_t slot, size_t i) {
  return 0.01f * static_cast<float>(worker + 1) + 0.001f * static_cast<float>(step) +
         0.0001f * static_cast<float>((slot * 31 + i) % 17);
}

void publish(Client& client) {
  const auto& layout = client.job().layout;
  if (client.worker() == 0) {
    fill(layout, client.parameters(), start);
    client.set(whole(client)).wait();
  }
  client.barrier();
  client.pull(whole(client)).wait();
}

void push_step(Client& client, int step, bool bring) {
  fill(client.job().layout, client.gradients(),
       [&](size_t slot, size_t i) { return gradient(client.worker(), step, slot, i); });
  client.push(whole(client), {.step = step, .lr = 0.5, .pull = bring}).wait();
}

/// Gradients that wait for their factor, twenty times; the last one is left out.
TEST_P(LaneContract, HeldGradientsAreScaledTogether) {
  const Job job = small_job(workers(), servers(), Order::together);
  for (bool in_place : {false, true}) {
    Servers running(way(), workers(), servers());
    expect_all_well(
        run_workers(running.meeting, job,
                    [&](Client& client) {
                      publish(client);
                      for (int step = 0; step < 20; step++) {
                        fill(job.layout, client.gradients(),
                             [&](size_t slot, size_t i) { return gradient(client.worker(), step, slot, i); });
                        const Pending pushed = client.push(whole(client), {.step = step, .lr = 0.5, .hold = true});
                        pushed.wait();
                        if (client.worker() == 0) {
                          double squares = 0;
                          for (size_t slot = 0; slot < job.layout.size(); slot++)
                            for (size_t i = 0; i < job.layout[slot].elements(); i++) {
                              double sum = 0;
                              for (int worker = 0; worker < workers(); worker++)
                                sum += static_cast<double>(gradient(worker, step, slot, i));
                              squares += sum * sum;
                            }
                          ASSERT_NEAR(client.squares() / squares, 1, 1e-5);
                          client.apply(step == 19 ? 0 : 0.25).wait();
                        }
                        const Pending pulled = client.pull(whole(client), {.at_least = pushed.version() + 1});
                        pulled.wait();
                        ASSERT_EQ(pulled.sound(), step < 19);
                      }
                      for (size_t slot = 0; slot < job.layout.size(); slot++)
                        for (size_t i = 0; i < job.layout[slot].elements(); i++) {
                          float value = start(slot, i);
                          for (int step = 0; step < 19; step++)
                            for (int worker = 0; worker < workers(); worker++)
                              value -= 0.125f * gradient(worker, step, slot, i);
                          ASSERT_NEAR(floats(client.parameters() + job.layout[slot].range.begin)[i], value, 2e-5)
                              << "slot " << slot << " element " << i;
                        }
                      client.barrier();
                    },
                    {.timeout = Seconds(20), .in_place = in_place}));
    running.join();
    expect_all_well(running.errors);
  }
}

TEST_P(LaneContract, TogetherSumsTheGradientsOfAllWorkers) {
  const Job job = small_job(workers(), servers(), Order::together);
  for (bool in_place : {false, true}) {
    Servers running(way(), workers(), servers());
    const auto outcomes =
        run_workers(running.meeting, job,
                    [&](Client& client) {
                      publish(client);
                      for (int step = 0; step < 20; step++) push_step(client, step, true);
                      std::vector<float> expected;
                      for (size_t slot = 0; slot < job.layout.size(); slot++)
                        for (size_t i = 0; i < job.layout[slot].elements(); i++) {
                          float value = start(slot, i);
                          for (int step = 0; step < 20; step++) {
                            float sum = 0;
                            for (int worker = 0; worker < workers(); worker++) sum += gradient(worker, step, slot, i);
                            value -= 0.5f * sum;
                          }
                          ASSERT_NEAR(floats(client.parameters() + job.layout[slot].range.begin)[i], value, 2e-5)
                              << "slot " << slot << " element " << i;
                        }
                      client.barrier();
                    },
                    {.timeout = Seconds(20), .in_place = in_place});
    expect_all_well(outcomes);
    running.join();
    expect_all_well(running.errors);
  }
}

TEST_P(LaneContract, OnArrivalAppliesEveryGradientOnce) {
  const Job job = small_job(workers(), servers(), Order::on_arrival);
  Servers running(way(), workers(), servers());
  const auto outcomes = run_workers(running.meeting, job, [&](Client& client) {
    publish(client);
    for (int step = 0; step < 30; step++) push_step(client, step, true);
    client.barrier();
    const Pending all = client.pull(whole(client));
    all.wait();
    EXPECT_EQ(all.version(), 1u + 30u * static_cast<unsigned>(workers()));
    for (size_t slot = 0; slot < job.layout.size(); slot++)
      for (size_t i = 0; i < job.layout[slot].elements(); i++) {
        double value = start(slot, i);
        for (int step = 0; step < 30; step++)
          for (int worker = 0; worker < workers(); worker++) value -= 0.5 * gradient(worker, step, slot, i);
        ASSERT_NEAR(floats(client.parameters() + job.layout[slot].range.begin)[i], value, 1e-4);
      }
    client.barrier();
  });
  expect_all_well(outcomes);
  running.join();
  expect_all_well(running.errors);
}

TEST_P(LaneContract, PullWaitsForAVersionAndSaysWhetherAnythingChanged) {
  const Job job = small_job(workers(), servers(), Order::on_arrival);
  Servers running(way(), workers(), servers());
  const auto outcomes = run_workers(running.meeting, job, [&](Client& client) {
    publish(client);
    client.barrier();
    const Pending same = client.pull(whole(client), {.since = 1});
    same.wait();
    EXPECT_FALSE(same.changed());
    client.barrier();
    if (client.worker() == 0) push_step(client, 0, false);
    const Pending later = client.pull(whole(client), {.at_least = 2});
    later.wait();
    EXPECT_GE(later.version(), 2u);
    EXPECT_TRUE(later.changed());
    EXPECT_NEAR(floats(client.parameters())[0], start(0, 0) - 0.5f * gradient(0, 0, 0, 0), 1e-6);
    client.barrier();
  });
  expect_all_well(outcomes);
}

TEST_P(LaneContract, RefusesWhatMakesNoSense) {
  Job job = small_job(workers(), servers(), Order::together);
  Servers running(way(), workers(), servers());
  const auto outcomes = run_workers(running.meeting, job, [&](Client& client) {
    publish(client);
    if (client.worker() == 0) {
      EXPECT_THROW(client.push({0, 64}, {.lr = 0.5}).wait(), InvalidArgument);  // half a chunk, where others wait
      EXPECT_THROW(client.push(whole(client), {.lr = std::nan("")}).wait(), InvalidArgument);
      EXPECT_THROW(client.pull({0, 65}).wait(), InvalidArgument);                                    // half an element
      EXPECT_THROW(client.pull_rows(0, std::vector<uint64_t>{1}, nullptr).wait(), InvalidArgument);  // no such table
    }
    client.barrier();
    for (int step = 0; step < 3; step++) push_step(client, step, true);  // it goes on as if nothing had been
    client.barrier();
  });
  expect_all_well(outcomes);
}

TEST_P(LaneContract, RowsByKey) {
  Job job = small_job(workers(), servers(), Order::on_arrival);
  job.tables = {
      {.name = "words", .width = 5, .optimizer = space::sgd({}), .fill = SparseTable::Fill::normal, .scale = 0.1},
      {.name = "ids", .width = 1, .optimizer = space::adagrad({})}};
  Servers running(way(), workers(), servers());
  const auto outcomes = run_workers(running.meeting, job, [&](Client& client) {
    std::vector<uint64_t> keys;
    for (uint64_t i = 0; i < 1000; i++) keys.push_back(i * 0x9e3779b97f4a7c15 ^ i);
    std::vector<float> before(keys.size() * 5), after(keys.size() * 5), gradients(keys.size() * 5, 1.f);
    client.pull_rows(0, keys, before.data()).wait();
    EXPECT_NE(before[0], 0.f);
    client.barrier();
    client.push_rows(0, keys, gradients.data(), 0.25).wait();
    client.barrier();
    client.pull_rows(0, keys, after.data()).wait();
    for (size_t i = 0; i < after.size(); i++)
      ASSERT_NEAR(after[i], before[i] - 0.25f * static_cast<float>(workers()), 1e-5);
    client.barrier();
  });
  expect_all_well(outcomes);
}

TEST_P(LaneContract, TakesEveryPieceOnceAndKeepsTheBound) {
  Job job = small_job(workers(), servers(), Order::on_arrival);
  job.rules.bound = 1;
  Servers running(way(), workers(), servers());
  std::vector<std::atomic<int>> taken(200);
  const auto outcomes = run_workers(running.meeting, job, [&](Client& client) {
    for (int epoch = 0; epoch < 2; epoch++) {
      for (Lease lease; (lease = client.take(epoch, epoch * 50, 100, 2, false)).what == Lease::piece;) {
        EXPECT_EQ(lease.step, epoch * 50 + lease.index / 2);
        taken[static_cast<size_t>(epoch * 100 + lease.index)]++;
      }
      client.barrier();
    }
  });
  expect_all_well(outcomes);
  for (const auto& count : taken) EXPECT_EQ(count.load(), 1);
}

TEST_P(LaneContract, OneWorkerAtATimeHasTheLock) {
  const Job job = small_job(workers(), servers(), Order::on_arrival);
  Servers running(way(), workers(), servers());
  std::atomic<int> inside{0}, granted{0};
  const auto outcomes = run_workers(running.meeting, job, [&](Client& client) {
    EXPECT_FALSE(client.lock(false));
    for (int i = 0; i < 100; i++) {
      if (!client.lock(true)) continue;
      EXPECT_EQ(inside.fetch_add(1), 0);
      granted++;
      inside--;
      client.unlock();
    }
    client.barrier();
  });
  expect_all_well(outcomes);
  EXPECT_GT(granted.load(), 0);
}

TEST_P(LaneContract, TwoModelsByTurns) {
  const Job first = small_job(workers(), servers(), Order::together);
  Job second = small_job(workers(), servers(), Order::on_arrival);
  second.layout = space::Layout({{"other.weight", DType::f32, {50, 30}}, {"other.bias", DType::f32, {50}}});
  Servers running(way(), workers(), servers());
  const auto outcomes = run_workers(running.meeting, first, [&](Client& client) {
    Client other(running.meeting, client.worker(), second, {.model = 1, .timeout = Seconds(20)});
    publish(client);
    publish(other);
    for (int step = 0; step < 10; step++) {
      push_step(client, step, true);
      push_step(other, step, true);
    }
    other.barrier();
    other.pull(whole(other)).wait();
    for (Client* one : {&client, &other})
      for (size_t slot = 0; slot < one->job().layout.size(); slot++)
        for (size_t i = 0; i < one->job().layout[slot].elements(); i++) {
          double value = start(slot, i);
          for (int step = 0; step < 10; step++)
            for (int worker = 0; worker < workers(); worker++) value -= 0.5 * gradient(worker, step, slot, i);
          ASSERT_NEAR(floats(one->parameters() + one->job().layout[slot].range.begin)[i], value, 1e-4);
        }
    other.barrier();
  });
  expect_all_well(outcomes);
  running.join();
  expect_all_well(running.errors);
}

TEST_P(LaneContract, ModelsOneAfterAnotherWhileTheRollIsKept) {
  Servers running(way(), workers(), servers());
  const auto outcomes = run_workers(running.meeting, {.workers = workers(), .servers = servers()},
                                    [&](Client&) {},  // a program that ends outside of models
                                    {.model = kRoll, .timeout = Seconds(20)});
  expect_all_well(outcomes);
  running.join();
  expect_all_well(running.errors);

  Servers more(way(), workers(), servers());
  Outcomes others =
      run_workers(more.meeting, {.workers = workers(), .servers = servers()},
                  [&](Client& roll) {
                    for (int model = 0; model < 3; model++) {
                      Job job = small_job(workers(), servers(), model == 1 ? Order::on_arrival : Order::together);
                      job.layout = space::Layout({{fmt::format("model{}", model), DType::f32, {17 + 100 * model}}});
                      Client client(more.meeting, roll.worker(), job,
                                    {.model = model, .timeout = Seconds(20), .in_place = model == 2});
                      publish(client);
                      for (int step = 0; step < 5; step++) push_step(client, step, true);
                      client.barrier();
                    }
                  },
                  {.model = kRoll, .timeout = Seconds(20)});
  expect_all_well(others);
  more.join();
  expect_all_well(more.errors);
}

TEST_P(LaneContract, WhoIsNotWaitedForAnyLongerIsNamed) {
  if (workers() < 2) GTEST_SKIP() << "needs two workers";
  const Job job = small_job(workers(), servers(), Order::together);
  Servers running(way(), workers(), servers());
  std::atomic<bool> over{false};
  const auto body = [&](Client& client) {
    if (client.worker() != 0) return over.wait(false);  // they sleep
    const Pending pushed = client.push(whole(client), {.step = 7, .lr = 0.5});
    const auto wake = [&] {
      over = true;
      over.notify_all();
    };
    try {
      pushed.wait();
    } catch (...) {
      wake();
      throw;
    }
    wake();
  };
  const auto outcomes =
      run_workers(running.meeting, job, body, {.timeout = Seconds(2), .timeout_setting = "--patience"});
  expect_error<Timeout>(outcomes[0], {workers() == 2 ? "worker 1 has not pushed its" : "workers 1", "not pushed",
                                      "step 7", "worker 0 has waited 2 s for its gradients", "A longer --patience"});
}

TEST_P(LaneContract, AWorkerThatLeavesEarlyIsNamed) {
  if (workers() < 2) GTEST_SKIP() << "needs two workers";
  const Job job = small_job(workers(), servers(), Order::together);
  Servers running(way(), workers(), servers());
  const auto outcomes = run_workers(running.meeting, job, [&](Client& client) {
    publish(client);
    if (client.worker() != 1) push_step(client, 0, true);
  });
  for (int worker = 0; worker < workers(); worker++)
    if (worker != 1) expect_error<PeerLost>(outcomes[static_cast<size_t>(worker)], {"worker 1"});
}

TEST_P(LaneContract, WorkersThatDisagreeAreToldWhere) {
  if (workers() < 2) GTEST_SKIP() << "needs two workers";
  Servers running(way(), workers(), servers());
  const Job job = small_job(workers(), servers(), Order::together);
  Job other = job;
  other.layout = space::Layout({{"conv.weight", DType::f32, {6, 5, 4}}});
  std::exception_ptr error;
  {
    std::thread first([&] {
      try {
        Client client(running.meeting, 0, job, {.timeout = Seconds(5)});
        client.barrier();
      } catch (const Error&) {
      }
    });
    try {
      std::this_thread::sleep_for(std::chrono::milliseconds(300));
      const Client client(running.meeting, 1, other, {.timeout = Seconds(5)});
    } catch (...) {
      error = std::current_exception();
    }
    expect_error<InvalidArgument>(error, {"disagree", "conv.weight", "6,5,5", "6,5,4"});
    for (int worker = 1; worker < workers(); worker++) Client(running.meeting, worker, job, {.timeout = Seconds(5)});
    first.join();
  }
}

std::string name_of(const testing::TestParamInfo<std::tuple<Way, int, int>>& info) {
  const char* ways[] = {"shm", "network", "tls"};
  return fmt::format("{}_{}_workers_{}_servers", ways[static_cast<int>(std::get<0>(info.param))],
                     std::get<1>(info.param), std::get<2>(info.param));
}

}  // namespace
}  // namespace trireme::ps::tests
