// label: multiproc grpc
// State of servers over both lanes: dense and rows, taken from one job and brought to another one, which then goes on
// with the same bits.
#include <cstring>

#include <trireme/ps/sparse_table.h>
#include <trireme/state/image.h>

#include "servers.h"

namespace trireme::ps::tests {
namespace {

using state::Image;

class ServerState : public testing::TestWithParam<Way> {};

float gradient(int worker, int step, size_t slot, size_t i) {
  return static_cast<float>((worker + 1) * 7 + step * 5 + static_cast<int>(slot) * 3 + static_cast<int>(i % 29) - 20) /
         64;
}

std::vector<uint64_t> keys_of(int step) {
  std::vector<uint64_t> keys;
  for (uint64_t i = 0; i < 3000; i++) keys.push_back((i * static_cast<uint64_t>(step % 4 + 1)) * 0x9e3779b97f4a7c15);
  return keys;
}

Job state_job(int workers, int servers, const space::UpdaterOptions& optimizer, bool shares = false) {
  Job job = small_job(workers, servers, shares ? Order::on_arrival : Order::together);
  job.optimizer = optimizer;
  if (shares) job.rules.step_updates = workers;
  job.tables = {{.name = "words", .width = 5, .optimizer = space::adam({}), .fill = SparseTable::Fill::normal},
                {.name = "ids", .width = 30'000, .optimizer = space::momentum({})},  // one fits a piece
                {.name = "empty", .width = 3, .optimizer = space::sgd({})}};
  return job;
}

void train(Client& client, int first, int last) {
  const space::Layout& layout = client.job().layout;
  for (int step = first; step < last; step++) {
    fill(layout, client.gradients(), [&](size_t slot, size_t i) { return gradient(client.worker(), step, slot, i); });
    for (size_t slot = 0; slot < layout.size(); slot++)
      client.present()[slot] = static_cast<int>(slot) != (client.worker() + step) % 5;
    client.push(whole(client), {.step = step, .lr = 0.1, .pull = true}).wait();
    if (client.worker() == 0) {  // one alone, so that the order of updates is known
      const std::vector<uint64_t> keys = keys_of(step);
      const std::vector<float> gradients(keys.size() * 5, 0.25f * static_cast<float>(step + 1));
      client.push_rows(0, keys, gradients.data(), 0.1).wait();
      const std::vector<uint64_t> few = {1, 2, static_cast<uint64_t>(step)};
      const std::vector<float> wide(few.size() * 30'000, 0.5f);
      client.push_rows(1, few, wide.data(), 0.1).wait();
    }
    client.barrier();
  }
}

struct Ended {
  std::vector<Image> images;
  std::vector<std::byte> parameters;
};

/// What workers do with one model; the second one has other parameters to begin with.
Ended run_job(Way way, const Job& job, const std::vector<Image>* kept, int first, int show, int last) {
  Ended ended{std::vector<Image>(static_cast<size_t>(job.workers)), {}};
  Servers running(way, job.workers, job.servers);
  expect_all_well(run_workers(running.meeting, job, [&](Client& client) {
    const auto mine = static_cast<size_t>(client.worker());
    fill(job.layout, client.parameters(),
         [&](size_t slot, size_t i) { return static_cast<float>(slot + i % 17) / 8 + (kept != nullptr ? 3.f : 0.f); });
    if (client.worker() == 0) {
      client.set(whole(client)).wait();
      const std::vector<uint64_t> strange = {0xdead, 0xbeef};
      const std::vector<float> wide(strange.size() * 5, 1.f);
      if (kept != nullptr) client.push_rows(0, strange, wide.data(), 0.5).wait();
    }
    client.barrier();
    client.pull(whole(client)).wait();
    client.barrier();
    if (kept != nullptr) {
      Image image = (*kept)[mine];
      check(image, {"a worker", client.about_state(), client.state_owners(), client.worker(), {}});
      for (const state::Part& part : client.state_parts()) image.read(part.vector, part.range, part.bytes);
      client.restore_state(image);
      client.restore_position({.version = *image.scalar("version"), .turn = 0, .epoch = 3, .piece = 5}, first);
    }
    train(client, first, show);
    ended.images[mine].about(client.about_state());
    for (const state::Part& part : client.state_parts()) ended.images[mine].part(part.vector, part.range, part.bytes);
    client.visit_state(ended.images[mine]);
    const Position position = client.position();
    ended.images[mine].scalar("version", position.version);
    if (kept != nullptr) {
      EXPECT_EQ(position.epoch, 3);
      EXPECT_EQ(position.piece, 5);
    }
    client.barrier();
    train(client, show, last);
    client.pull(whole(client)).wait();
    if (client.worker() == 0) {
      ended.parameters.assign(client.parameters(), client.parameters() + job.layout.bytes());
      std::vector<float> rows(3000 * 5);
      client.pull_rows(0, keys_of(2), rows.data()).wait();
      const auto bytes = std::as_bytes(std::span(rows));
      ended.parameters.insert(ended.parameters.end(), bytes.begin(), bytes.end());
    }
    client.barrier();
  }));
  running.join();
  expect_all_well(running.errors);
  return ended;
}

Image all_of(const std::vector<Image>& images) {
  Image all;
  for (const Image& image : images) all.add(image);
  return all;
}

TEST_P(ServerState, ANewJobGoesOnWithTheSameBits) {
  for (const auto& optimizer : {space::momentum({}), space::adagrad({}), space::adam({})}) {
    const Job job = state_job(2, 2, optimizer);
    const Ended whole = run_job(GetParam(), job, nullptr, 0, 4, 7);
    const Ended later = run_job(GetParam(), job, &whole.images, 4, 4, 7);
    for (size_t worker = 0; worker < 2; worker++)
      EXPECT_TRUE(later.images[worker] == whole.images[worker]) << name_of(optimizer.kind) << ", worker " << worker;
    EXPECT_EQ(later.parameters, whole.parameters) << name_of(optimizer.kind);
    size_t rows = 0;
    all_of(later.images).rows("words", [&](const state::Row&) { rows++; });
    EXPECT_GT(rows, 3000u);
  }
}

/// Chunks and rows go to other servers.
TEST_P(ServerState, AnotherNumberOfServers) {
  const Job two = state_job(2, 2, space::adam({}));
  Job three = two;
  three.servers = 3;
  three.chunk_bytes = 640;
  const Ended before = run_job(GetParam(), two, nullptr, 0, 4, 7);
  Image all = all_of(before.images), none;
  none.about(all.about());
  for (const std::string& vector : all.contents().vectors())
    for (const state::Holding& part : all.contents().of(vector))
      none.part(vector, part.range, all.bytes_of(vector, part.range));
  for (const auto& [name, value] : all.scalars()) none.scalar(name, value);
  const std::vector<Image> images = {all, none};  // rows are brought once
  const Ended after = run_job(GetParam(), three, &images, 4, 4, 7);
  EXPECT_TRUE(all_of(after.images) == all);
  EXPECT_EQ(after.parameters, before.parameters);
}

TEST_P(ServerState, EveryWorkersOwnOptimizerState) {
  const Job job = state_job(2, 1, space::momentum({}), true);
  const Ended before = run_job(GetParam(), job, nullptr, 0, 3, 3);
  const Image all = all_of(before.images);
  EXPECT_NE(all.bytes_of("worker/0/optimizer/momentum", {0, 64}), all.bytes_of("worker/1/optimizer/momentum", {0, 64}));
  const Ended after = run_job(GetParam(), job, &before.images, 3, 3, 3);
  for (size_t worker = 0; worker < 2; worker++) EXPECT_TRUE(after.images[worker] == before.images[worker]);
}

INSTANTIATE_TEST_SUITE_P(Ways, ServerState, testing::Values(Way::shm, Way::network),
                         [](const auto& info) { return std::string(info.param == Way::shm ? "shm" : "network"); });

}  // namespace
}  // namespace trireme::ps::tests
