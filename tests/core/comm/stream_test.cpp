// label: unit
// The contract of comm::Communicator on the engine "stream", ranks as threads that meet on loopback.
#include "network_engine.h"
#include "stream_ranks.h"

namespace trireme::tests {
namespace {

std::vector<std::unique_ptr<comm::network::Transport>> connect_all(int ranks) { return connect_by_streams(ranks); }

INSTANTIATE_TEST_SUITE_P(Stream, Contract,
                         testing::Combine(testing::Values(network_engine("stream", 16 << 10, connect_all)),
                                          testing::Values(1, 2, 3, 8)),
                         case_name);

}  // namespace
}  // namespace trireme::tests
