// label: unit
// Rows through client and server: the same bits as from the table alone.
#include <trireme/ps/sparse_table.h>

#include "servers.h"

namespace trireme::ps::tests {
namespace {

constexpr size_t kMany = 50'000;

Job sparse_job(int servers, size_t width, uint64_t evict_after = 0) {
  Job job{.servers = servers};
  job.tables = {{.name = "rows",
                 .width = width,
                 .optimizer = space::adam({}),
                 .fill = SparseTable::Fill::uniform,
                 .evict_after = evict_after}};
  return job;
}

/// Many keys, each several times, far from each other.
std::vector<uint64_t> repeated_keys() {
  std::vector<uint64_t> keys;
  for (size_t i = 0; i < kMany; i++) keys.push_back((i * 7919 % 9001) * 0xbf58476d1ce4e5b9);
  return keys;
}

void same_as_the_table(int servers, size_t width) {
  const Job job = sparse_job(servers, width);
  const std::vector<uint64_t> keys = repeated_keys();
  std::vector<float> gradients(keys.size() * width), expected(gradients.size());
  for (size_t i = 0; i < gradients.size(); i++) gradients[i] = static_cast<float>(i % 101) - 50;
  SparseTable table(job.tables[0]);
  for (int step = 0; step < 3; step++) table.push(keys, gradients.data(), 0.125);
  table.pull(keys, expected.data());

  Servers running(Way::shm, 1, servers);
  expect_all_well(run_workers(running.meeting, job, [&](Client& client) {
    std::vector<float> rows(keys.size() * width);
    for (int step = 0; step < 3; step++) client.push_rows(0, keys, gradients.data(), 0.125).wait();
    client.pull_rows(0, keys, rows.data()).wait();
    EXPECT_EQ(rows, expected);
  }));
  running.join();
  expect_all_well(running.errors);
}

TEST(SparseLane, OneServer) { same_as_the_table(1, 16); }
TEST(SparseLane, OneServerOddWidth) { same_as_the_table(1, 5); }
TEST(SparseLane, TwoServers) { same_as_the_table(2, 16); }

TEST(SparseLane, APushIsOneTick) {
  const Job job = sparse_job(1, 4, 5);
  const std::vector<uint64_t> keys = repeated_keys();
  const std::vector<uint64_t> early = {1, 2, 3};
  Servers running(Way::shm, 1, 1);
  expect_all_well(run_workers(running.meeting, job, [&](Client& client) {
    const std::vector<float> gradients(keys.size() * 4, 1.f);
    const auto rows = [&] { return static_cast<size_t>(client.counted()[0].total("rows").value); };
    client.push_rows(0, early, gradients.data(), 0.1).wait();
    for (int step = 0; step < 3; step++) client.push_rows(0, keys, gradients.data(), 0.1).wait();
    EXPECT_EQ(rows(), 9001 + early.size());
    for (int step = 0; step < 3; step++) client.push_rows(0, keys, gradients.data(), 0.1).wait();
    EXPECT_EQ(rows(), 9001);
  }));
}

}  // namespace
}  // namespace trireme::ps::tests
