// label: unit
// The contract of comm::Communicator on the engine "stream", ranks as threads that meet on loopback.
#include <filesystem>

#include <trireme/cluster/coordination/tls.h>

#include "network_engine.h"
#include "stream_certificates.h"
#include "stream_ranks.h"

namespace trireme::tests {
namespace {

std::vector<std::unique_ptr<comm::network::Transport>> by_token(int ranks) { return connect_by_streams(ranks); }
std::vector<std::unique_ptr<comm::network::Transport>> by_certificates(int ranks) {
  static const CertificateFolder folder;
  return connect_by_streams(ranks, folder.secrets());
}

INSTANTIATE_TEST_SUITE_P(Token, Contract,
                         testing::Combine(testing::Values(network_engine("token", 16 << 10, by_token)),
                                          testing::Values(1, 2)),
                         case_name);
INSTANTIATE_TEST_SUITE_P(TokenRing, Contract,
                         testing::Combine(testing::Values(network_engine("ring", 0, by_token)), testing::Values(3)),
                         case_name);
INSTANTIATE_TEST_SUITE_P(Certificates, Contract,
                         testing::Combine(testing::Values(network_engine("certificates", 16 << 10, by_certificates)),
                                          testing::Values(2)),
                         case_name);

}  // namespace
}  // namespace trireme::tests
