#pragma once
// Ranks as threads of this process that the engine "stream" connects over loopback.
#include <trireme/comm/stream/stream.h>

#include "board.h"
#include "network_ranks.h"

namespace trireme::tests {

inline comm::network::Secrets token_alone() { return {.job = "a job", .token = "a token of the job"}; }

inline comm::network::Meeting stream_meeting(Board& board, int rank, int ranks,
                                             const comm::network::Secrets& secrets = token_alone()) {
  return {.store = board,
          .name = "epoch 0/all/lane 0",
          .rank = rank,
          .size = ranks,
          .address = "127.0.0.1",
          .timeout = Seconds(20),
          .secrets = secrets};
}

/// The transports of a group of `ranks`, by rank.
inline std::vector<std::unique_ptr<comm::network::Transport>> connect_by_streams(
    int ranks, const comm::network::Secrets& secrets = token_alone()) {
  Board board;
  std::vector<std::unique_ptr<comm::network::Transport>> transports(static_cast<size_t>(ranks));
  std::vector<std::exception_ptr> errors(transports.size());
  std::vector<std::thread> threads;
  for (int rank = 0; rank < ranks; rank++)
    threads.emplace_back([&, rank] {
      try {
        transports[static_cast<size_t>(rank)] = comm::stream::connect(stream_meeting(board, rank, ranks, secrets));
      } catch (...) {
        errors[static_cast<size_t>(rank)] = std::current_exception();
      }
    });
  for (std::thread& thread : threads) thread.join();
  for (const auto& error : errors)
    if (error) std::rethrow_exception(error);
  return transports;
}

}  // namespace trireme::tests
