#pragma once
// Ranks as threads: each has its own World, all in one process.
#include <fmt/format.h>
#include <torch/torch.h>

#include <atomic>
#include <exception>
#include <functional>
#include <thread>
#include <vector>

#include <trireme/cluster/world.h>
#include <trireme/ps/server.h>

namespace trireme::test {

/// A name that no other job of this machine has.
inline std::string job_name() {
  static std::atomic<int> jobs{0};
  return fmt::format("test-{}-{}", getpid(), jobs++);
}

/// Runs `body` once per rank, beside `servers` parameter servers, and rethrows the first rank's error, if there is one;
/// a server's, if no rank has any.
inline void run_job(int ranks, int servers, const std::function<void(World&)>& body, double timeout = 30) {
  const std::string job = job_name();
  std::vector<std::exception_ptr> errors(static_cast<size_t>(ranks + servers));
  std::vector<std::thread> threads;
  const auto start = [&](size_t number, auto part) {
    threads.emplace_back([&errors, number, part] {
      at::set_num_threads(1);
      try {
        part();
      } catch (...) {
        errors[number] = std::current_exception();
      }
    });
  };
  for (int server = 0; server < servers; server++)
    start(static_cast<size_t>(ranks + server), [=] {
      ps::ServerOptions options;
      options.server = server, options.workers = ranks, options.servers = servers;
      options.meeting.job = job;
      options.timeout = Seconds(timeout);
      options.helpers = 0;
      ps::Server(options).run();
    });
  for (int rank = 0; rank < ranks; rank++)
    start(static_cast<size_t>(rank), [=, &body] {
      World world({.rank = rank, .size = ranks, .job = job, .launcher = "test", .servers = servers},
                  {.timeout = Seconds(timeout)});
      body(world);
    });
  for (std::thread& thread : threads) thread.join();
  for (const auto& error : errors)
    if (error) std::rethrow_exception(error);
}

/// The same without servers.
inline void run_ranks(int ranks, const std::function<void(World&)>& body, double timeout = 30) {
  run_job(ranks, 0, body, timeout);
}

}  // namespace trireme::test
