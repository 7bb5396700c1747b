#pragma once
// What a server knows of one of its chunks. For the files of service.h alone. Not installed.
#include <array>
#include <optional>
#include <vector>

#include <trireme/ps/service.h>

namespace trireme::ps {

struct Service::ChunkState {
  explicit ChunkState(const Chunk& chunk, const Job& job)
      : chunk(chunk),
        pushed(static_cast<size_t>(job.workers)),
        pulled(static_cast<size_t>(job.workers)),
        then(static_cast<size_t>(job.rules.stale == Stale::compensated ? job.workers : 0)) {
    for (int i = 0; i < (job.rules.step_updates > 1 ? job.workers : 1); i++)
      updaters.emplace_back(job.optimizer, std::array{chunk.range});
  }

  space::Updater& updater_of(size_t worker) { return updaters[updaters.size() > 1 ? worker : 0]; }

  const Chunk& chunk;
  std::vector<space::Updater> updaters;         // one, or one by worker where updates count as shares of a step
  uint64_t version = 0;                         // updates so far; the first parameters are version 1
  std::vector<std::optional<Incoming>> pushed;  // by worker: gradients that wait
  std::vector<uint64_t> pulled;                 // by worker: the version that it has
  std::vector<std::vector<std::byte>>
      then;                     // by worker: the parameters that it has, if gradients are to be compensated
  std::vector<Incoming> pulls;  // that wait for a version
  int turn = 0;
  bool gathered = false;  // the gradients of all workers are held here, see kHold
  double squares = 0;     // of their sum
  bool fine = true;       // the last update left nothing out
};

}  // namespace trireme::ps
