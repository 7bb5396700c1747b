// label: multiproc
// Bounded staleness with workers of random speed: no gradient is older than the bound, and nobody waits without need.
#include <chrono>
#include <random>

#include "servers.h"

namespace trireme::ps::tests {
namespace {

constexpr int kWorkers = 8, kSteps = 1000;

struct Observed {
  int64_t furthest_ahead = 0;  // seen by the workers themselves, at every beginning
  double age_max = 0;          // counted by the server
  std::vector<int> pieces = std::vector<int>(kWorkers);
};

/// 1,000 steps of 8 pieces; a worker's delay is drawn anew for every piece, and now and then it is long. Worker 0's
/// lasts until the others are six steps ahead, if nothing keeps them from it.
Observed run_with(int64_t bound) {
  Job job = small_job(kWorkers, 1, Order::on_arrival);
  job.rules.bound = bound;
  Servers running(Way::shm, kWorkers, 1);
  Observed seen;
  std::mutex mutex;
  std::vector<int64_t> at(kWorkers, kGone);  // the steps of pieces that are surely not finished
  std::vector<int64_t> last(kWorkers, 0);    // the steps of the pieces that were taken last
  const auto outcomes = run_workers(
      running.meeting, job,
      [&](Client& client) {
        if (client.worker() == 0) client.set(whole(client)).wait();
        client.barrier();
        client.pull(whole(client)).wait();
        std::mt19937 random(static_cast<unsigned>(client.worker()));
        for (Lease work; (work = client.take(0, 0, kSteps * kWorkers, kWorkers, false)).what == Lease::piece;) {
          {
            const std::lock_guard lock(mutex);
            at[static_cast<size_t>(client.worker())] = last[static_cast<size_t>(client.worker())] = work.step;
            seen.pieces[static_cast<size_t>(client.worker())]++;
            seen.furthest_ahead = std::max(seen.furthest_ahead, work.step - *std::min_element(at.begin(), at.end()));
          }
          if (random() % 50 == 0) {  // the delay that is tested, not a wait
            std::this_thread::sleep_for(std::chrono::microseconds(random() % 3000));
            const auto others_ahead = [&] {
              const std::lock_guard lock(mutex);
              return *std::max_element(last.begin(), last.end()) > work.step + 6;
            };
            for (const Deadline most(Seconds(0.1)); client.worker() == 0 && !most.passed() && !others_ahead();)
              std::this_thread::sleep_for(std::chrono::microseconds(200));
          }
          {
            const std::lock_guard lock(mutex);
            at[static_cast<size_t>(client.worker())] = kGone;
          }
          client.push(whole(client), {.step = work.step, .lr = 0.001, .pull = true}).wait();
        }
        client.barrier();
        if (client.worker() == 0) seen.age_max = client.counted()[0].total("age").most;
        client.barrier();
      },
      {.timeout = Seconds(60)});
  expect_all_well(outcomes);
  return seen;
}

TEST(Staleness, NeverExceedsTheBound) {
  for (int64_t bound : {1, 3}) {
    const Observed seen = run_with(bound);
    EXPECT_LE(seen.age_max, static_cast<double>(bound));
    EXPECT_LE(seen.furthest_ahead, bound);
    EXPECT_EQ(std::accumulate(seen.pieces.begin(), seen.pieces.end(), 0), kSteps * kWorkers);
  }
}

TEST(Staleness, WithoutABoundItDoes) { EXPECT_GT(run_with(-1).age_max, 3); }  // or the test above would prove nothing

}  // namespace
}  // namespace trireme::ps::tests
