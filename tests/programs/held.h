#pragma once
// What a rank that is alone on its machine really holds: measured, not computed. For programs that tests/hosts starts.
#include <malloc.h>
#include <sys/stat.h>
#include <torch/torch.h>

#include <algorithm>
#include <atomic>
#include <fstream>
#include <iostream>
#include <thread>

#include <trireme/trireme.h>

namespace held {

/// Bytes: of the machine's segment, as far as it has been given memory, and of this process's resident set.
struct Held {
  double segment = 0, resident = 0;
};

inline Held now(trireme::World& world) {
  struct stat file {};
  fstat(world.local().segment().descriptor(), &file);
  size_t pages = 0, resident = 0;
  std::ifstream("/proc/self/statm") >> pages >> resident;
  return {static_cast<double>(file.st_blocks) * 512, static_cast<double>(resident) * 4096};
}

/// Where nothing is under way. Tensors that were freed stay in malloc's heap for the next ones; who asks what a process
/// needs does not ask for those.
inline Held at_rest(trireme::World& world) {
  malloc_trim(0);
  return now(world);
}

/// Runs `step` so many times and prints bytes per parameter beyond `before`: between steps, and at most within one (a
/// thread looks every half millisecond); then `more`.
inline void measure(trireme::World& world, const Held& before, double parameters, int steps, const std::string& more,
                    const std::function<void()>& step) {
  Held most = before;
  std::atomic<bool> ended{false};
  std::thread watch([&] {
    while (!ended.load()) {
      const Held here = now(world);
      most = {std::max(most.segment, here.segment), std::max(most.resident, here.resident)};
      std::this_thread::sleep_for(std::chrono::microseconds(500));
    }
  });
  const auto begin = std::chrono::steady_clock::now();
  for (int i = 0; i < steps; i++) step();
  const std::chrono::duration<double> taken = std::chrono::steady_clock::now() - begin;
  ended.store(true);
  watch.join();
  const Held rest = at_rest(world);
  std::cout << "rank " << world.rank() << " of " << world.size() << ": segment "
            << (rest.segment - before.segment) / parameters << " at most "
            << (most.segment - before.segment) / parameters << ", resident "
            << (rest.resident - before.resident) / parameters << " at most "
            << (most.resident - before.resident) / parameters << ", " << more << ", " << taken.count() / steps * 1000
            << " ms a step\n"
            << std::flush;
  world.comm().barrier("end");
}

}  // namespace held
