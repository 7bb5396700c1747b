// label: unit
// Gradients that are pushed to servers on other machines as messages of codecs.
#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <random>

#include <trireme/exchange/push_coding.h>
#include <trireme/ps/coded.h>

#include "../compress/gradients.h"
#include "../ps/servers.h"

namespace trireme::exchange::tests {
namespace {

using ps::Client;
using ps::Order;
using ps::tests::floats;
using ps::tests::run_workers;
using ps::tests::Servers;
using ps::tests::small_job;
using ps::tests::Way;
using trireme::tests::expect_all_well;

constexpr double kRate = 0.5;  // of the job's sgd

const std::vector<std::string> kEach =
    compress::tests::each_codec({{"topk", {"0.05"}}, {"randomk", {"0.2"}}, {"sketch", {"0.3"}}});

float gradient_of(int worker, int step, size_t slot, size_t i) {
  const size_t seed = static_cast<size_t>(worker) * 7919 + static_cast<size_t>(step) * 104729 + slot * 1299709 + i;
  const uint64_t mixed = (seed + 1) * 0x9e3779b97f4a7c15;
  return static_cast<float>((mixed ^ (mixed >> 31)) >> 40) * 0x1p-23f - 1;
}

ps::Job coded_job(const std::string& codec, int workers, int servers, Order order) {
  ps::Job job = small_job(workers, servers, order);
  job.codec = compress::spec_named(codec);
  job.codec_excludes = {"fc2*"};
  return job;
}

Options options_of(const ps::Job& job) {
  Options options{.codec = job.codec, .codec_excludes = job.codec_excludes};
  options.seed = 5;
  return options;
}

void publish(Client& client) {
  if (client.worker() == 0) client.set(ps::tests::whole(client)).wait();
  client.barrier();
  client.pull(ps::tests::whole(client)).wait();
}

/// Worker 0 has no gradient of slot 2 in every third step.
bool has(int worker, int step, size_t slot) { return slot != 2 || step % 3 != 1 || worker != 0; }

/// Returns whether what was pushed was finite.
bool push_step(Client& client, PushCoding& coding, int step, bool watch = false) {
  const space::Layout& layout = client.job().layout;
  ps::tests::fill(layout, client.gradients(),
                  [&](size_t slot, size_t i) { return gradient_of(client.worker(), step, slot, i); });
  for (size_t slot = 0; slot < layout.size(); slot++) client.present()[slot] = has(client.worker(), step, slot);
  const ps::Pending pushed =
      client.push(ps::tests::whole(client),
                  {.step = step, .lr = kRate, .pull = true, .watch = watch, .encode = [&](const ps::Chunk& chunk) {
                     return coding.encode(chunk, step);
                   }});
  pushed.wait();
  return pushed.sound();
}

using Parameters = std::vector<float>;

Parameters elements(const space::Layout& layout, const std::byte* flat) {
  Parameters all;
  for (const space::Slot& slot : layout.slots()) {
    const auto* const at = reinterpret_cast<const float*>(flat + slot.range.begin);
    all.insert(all.end(), at, at + slot.elements());
  }
  return all;
}

/// What the job should come to, in one process: each worker's error feedback, and the sum in the order of workers.
Parameters expected(const ps::Job& job, int steps) {
  const space::Layout& layout = job.layout;
  const std::vector<ps::Chunk> chunks =
      ps::plan_chunks(layout, plan_buckets(layout, job.bucket_bytes), job.servers, job.chunk_bytes);
  std::vector<std::unique_ptr<compress::ErrorFeedback>> codecs;
  for (int worker = 0; worker < job.workers; worker++)
    codecs.push_back(std::make_unique<compress::ErrorFeedback>(compress::make_codec(job.codec, true), layout.bytes()));
  std::vector<std::byte> parameters(layout.bytes()), gradient(layout.bytes()), sum(layout.bytes());
  std::vector<uint8_t> present(layout.size());
  for (int step = 0; step < steps; step++) {
    std::fill(sum.begin(), sum.end(), std::byte{});
    for (int worker = 0; worker < job.workers; worker++) {
      ps::tests::fill(layout, gradient.data(),
                      [&](size_t slot, size_t i) { return gradient_of(worker, step, slot, i); });
      for (size_t slot = 0; slot < layout.size(); slot++) present[slot] = has(worker, step, slot);
      auto& codec = *codecs[static_cast<size_t>(worker)];
      for (const ps::Chunk& chunk : chunks) {
        compress::Parcel parcel = ps::parcel_of(job, chunk, codec);
        std::vector<std::byte> message(parcel.bytes), decoded(layout.bytes());
        compress::encode(parcel, codec, gradient.data(), {present.data() + chunk.first, chunk.last - chunk.first},
                         compress::seed_of(5, step, worker), message);
        for (const auto& item : parcel.items)
          if (present[chunk.first + item.slot] != 0) compress::add(item, codec, message, sum.data());
      }
    }
    for (size_t slot = 0; slot < layout.size(); slot++)
      for (size_t i = 0; i < layout[slot].elements(); i++)
        floats(parameters.data() + layout[slot].range.begin)[i] -=
            static_cast<float>(kRate) * floats(sum.data() + layout[slot].range.begin)[i];
  }
  return elements(layout, parameters.data());
}

class Pushed : public testing::TestWithParam<std::string> {};
INSTANTIATE_TEST_SUITE_P(Codecs, Pushed, testing::ValuesIn(kEach), [](const auto& info) {
  std::string name = info.param;
  std::replace_if(
      name.begin(), name.end(), [](char c) { return std::isalnum(static_cast<unsigned char>(c)) == 0; }, '_');
  return name;
});

/// Together, and the same bits whenever it is run again.
TEST_P(Pushed, ServersApplyWhatTheCodecMakesOfIt) {
  const ps::Job job = coded_job(GetParam(), 2, 2, Order::together);
  const Parameters wanted = expected(job, 6);
  Parameters before;
  for (int again = 0; again < 2; again++) {
    Servers running(Way::network, 2, 2);
    std::array<Parameters, 2> got;
    expect_all_well(run_workers(running.meeting, job, [&](Client& client) {
      PushCoding coding(client, options_of(job), nullptr);
      publish(client);
      for (int step = 0; step < 6; step++) {
        EXPECT_TRUE(push_step(client, coding, step));
        coding.settle(true);
      }
      got[static_cast<size_t>(client.worker())] = elements(job.layout, client.parameters());
      client.barrier();
    }));
    EXPECT_EQ(got[0], got[1]);
    ASSERT_EQ(got[0].size(), wanted.size());
    for (size_t i = 0; i < wanted.size(); i++) ASSERT_NEAR(got[0][i], wanted[i], 1e-5) << "element " << i;
    if (again > 0) {
      EXPECT_EQ(got[0], before);
    }
    before = got[0];
  }
}

/// Σ of what all workers gave = what the servers applied + what workers keep, whoever comes when. And fewer bytes come.
TEST_P(Pushed, NothingIsLostInAnyOrder) {
  for (const Order order : {Order::together, Order::on_arrival, Order::rotating}) {
    const ps::Job job = coded_job(GetParam(), 3, 1, order);
    Servers running(Way::network, 3, 1);
    std::array<double, 3> given{}, kept{}, came{};
    std::array<Parameters, 3> ended;
    expect_all_well(run_workers(running.meeting, job, [&](Client& client) {
      const auto me = static_cast<size_t>(client.worker());
      metrics::Registry registry;
      PushCoding coding(client, options_of(job), &registry);
      publish(client);
      for (int step = 0; step < 7; step++) {
        push_step(client, coding, step);
        coding.settle(true);
        for (size_t slot = 0; slot < job.layout.size(); slot++)
          for (size_t i = 0; i < job.layout[slot].elements() && has(client.worker(), step, slot); i++)
            given[me] += static_cast<double>(gradient_of(client.worker(), step, slot, i));
      }
      const metrics::Snapshot counted = registry.snapshot();
      const auto value = [&](const char* metric) { return counted.total(metric).value; };
      kept[me] = value("codec_residual");
      EXPECT_NEAR(value("codec_given"), value("codec_sent") + kept[me], 1e-2);
      double pushed = 0;
      for (const ps::Chunk& chunk : client.chunks()) pushed += 7.0 * static_cast<double>(chunk.range.size());
      EXPECT_EQ(value("codec_before_bytes"), pushed);
      EXPECT_LT(value("codec_after_bytes"), 0.8 * value("codec_before_bytes"));
      client.barrier();
      if (me == 0) came[0] = client.counted()[0].total("pushed_bytes").value, came[1] = 3 * value("codec_after_bytes");
      client.pull(ps::tests::whole(client)).wait();
      ended[me] = elements(job.layout, client.parameters());
      client.barrier();
    }));
    double applied = 0;
    for (const float parameter : ended[0]) applied -= static_cast<double>(parameter) / kRate;
    EXPECT_NEAR(given[0] + given[1] + given[2], applied + kept[0] + kept[1] + kept[2], 0.05) << GetParam();
    EXPECT_EQ(came[0], came[1]);
  }
}

/// Told as such, and nothing is remembered of it.
TEST(PushCoding, WhatIsNotFiniteIsLeftOut) {
  const ps::Job job = coded_job("topk:0.05", 1, 1, Order::together);
  Servers running(Way::network, 1, 1);
  expect_all_well(run_workers(running.meeting, job, [&](Client& client) {
    Options options = options_of(job);
    options.on_nan = OnNan::skip;
    PushCoding coding(client, options, nullptr);
    publish(client);
    push_step(client, coding, 0, true);
    coding.settle(true);
    const auto kept = [&] {
      const std::span<std::byte> all = coding.feedback().residual(space::Range{0, job.layout.bytes()});
      return std::vector<std::byte>(all.begin(), all.end());
    };
    const std::vector<std::byte> before = kept();
    floats(client.gradients() + job.layout[2].range.begin)[7] = std::nanf("");
    const ps::Pending pushed = client.push(
        ps::tests::whole(client), {.step = 1, .lr = kRate, .watch = true, .encode = [&](const ps::Chunk& chunk) {
                                     return coding.encode(chunk, 1);
                                   }});
    pushed.wait();
    EXPECT_FALSE(pushed.sound());
    coding.settle(false);
    EXPECT_EQ(kept(), before);
  }));
}

/// Whatever comes: a sentence, and no parameter has changed. A good push is taken afterwards.
TEST(PushCoding, HostileMessagesChangeNothing) {
  const ps::Job job = coded_job("topk:0.05", 1, 1, Order::on_arrival);
  Servers running(Way::network, 1, 1);
  expect_all_well(run_workers(running.meeting, job, [&](Client& client) {
    PushCoding coding(client, options_of(job), nullptr);
    publish(client);
    const Parameters before = elements(job.layout, client.parameters());
    ps::tests::fill(job.layout, client.gradients(), [](size_t, size_t i) { return 1 + static_cast<float>(i); });
    std::mt19937_64 random(3);
    std::vector<std::byte> made;
    const auto refused = [&](const std::function<void()>& spoil) {
      try {
        client
            .push(client.chunks()[0].range, {.lr = kRate,
                                             .encode = [&](const ps::Chunk& chunk) -> std::span<const std::byte> {
                                               const auto message = coding.encode(chunk, 0);
                                               made.assign(message.begin(), message.end());
                                               spoil();
                                               return made;
                                             }})
            .wait();
        return std::string();
      } catch (const InvalidArgument& error) {
        return std::string(error.what());
      }
    };
    EXPECT_NE(refused([&] { made.pop_back(); }).find("which the codec makes"), std::string::npos);
    EXPECT_NE(refused([&] { made.resize(made.size() + 8); }).find("which the codec makes"), std::string::npos);
    EXPECT_NE(refused([&] { made[0] = std::byte{99}; }).find("codec 99"), std::string::npos);
    EXPECT_NE(refused([&] { std::memset(made.data() + 8, 255, 4); }).find("index"), std::string::npos);
    for (int i = 0; i < 200; i++)
      refused([&] {
        for (std::byte& byte : made) byte = static_cast<std::byte>(random());
      });
    client.pull(ps::tests::whole(client)).wait();
    EXPECT_EQ(elements(job.layout, client.parameters()), before);
    EXPECT_EQ(refused([] {}), "");
    client.pull(ps::tests::whole(client)).wait();
    EXPECT_NE(elements(job.layout, client.parameters()), before);
  }));
}

}  // namespace
}  // namespace trireme::exchange::tests
