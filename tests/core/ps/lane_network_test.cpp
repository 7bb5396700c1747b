// label: multiproc grpc
#include "lane_contract.h"

namespace trireme::ps::tests {
namespace {

INSTANTIATE_TEST_SUITE_P(Network, LaneContract,
                         testing::Combine(testing::Values(Way::network, Way::network_tls), testing::Values(1, 2, 4),
                                          testing::Values(1, 3)),
                         name_of);

}  // namespace
}  // namespace trireme::ps::tests
