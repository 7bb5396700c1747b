#pragma once
// What a server knows of one of its chunks. For the files of service.h alone; not installed.
#include <array>
#include <optional>
#include <vector>

#include <trireme/ps/service.h>

namespace trireme::ps {

struct Service::ChunkState {
  explicit ChunkState(const Chunk& chunk, const Job& job)
      : chunk(chunk),
        updater(job.optimizer, std::array{chunk.range}),
        pushed(static_cast<size_t>(job.workers)),
        pulled(static_cast<size_t>(job.workers)),
        then(static_cast<size_t>(job.rules.stale == Stale::compensated ? job.workers : 0)) {}

  const Chunk& chunk;
  space::Updater updater;
  uint64_t version = 0;                         // updates so far; the first parameters are version 1
  std::vector<std::optional<Incoming>> pushed;  // by worker: gradients that wait
  std::vector<uint64_t> pulled;                 // by worker: the version that it has
  std::vector<std::vector<std::byte>> then;     // by worker: the parameters that it has, if gradients are to be compensated
  std::vector<Incoming> pulls;                  // that wait for a version
  int turn = 0;
};

}  // namespace trireme::ps
