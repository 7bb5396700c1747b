#pragma once
// Ranks as threads: each has its own World, all in one process.
#include <torch/torch.h>

#include <atomic>
#include <exception>
#include <functional>
#include <thread>
#include <vector>

#include <trireme/cluster/world.h>

namespace trireme::test {

/// Runs `body` once per rank and rethrows the first rank's error, if there is one.
inline void run_ranks(int ranks, const std::function<void(World&)>& body, double timeout = 30) {
  static std::atomic<int> jobs{0};
  const std::string job = "test-" + std::to_string(getpid()) + "-" + std::to_string(jobs++);
  std::vector<std::exception_ptr> errors(static_cast<size_t>(ranks));
  std::vector<std::thread> threads;
  for (int rank = 0; rank < ranks; rank++)
    threads.emplace_back([&, rank] {
      at::set_num_threads(1);
      try {
        World world({rank, ranks, job, "test"}, {.timeout = Seconds(timeout)});
        body(world);
      } catch (...) {
        errors[static_cast<size_t>(rank)] = std::current_exception();
      }
    });
  for (std::thread& thread : threads) thread.join();
  for (const auto& error : errors)
    if (error) std::rethrow_exception(error);
}

}  // namespace trireme::test
