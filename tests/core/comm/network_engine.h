#pragma once
// The network as an engine of the contract's suite.
#include "contract.h"
#include "network_ranks.h"

namespace trireme::tests {

inline Engine network_engine(const char* name, size_t direct_bytes, const Connect& connect = connect_by_sockets) {
  const auto memory = std::make_shared<Memory>();
  return {name,
          [=](int ranks, const auto& body) {
            expect_all_well(run_network(ranks, body, {.direct_bytes = direct_bytes}, connect));
            memory->clear();
          },
          [=](Communicator&, size_t bytes) { return memory->take(bytes); }};
}

}  // namespace trireme::tests
