// label: multiproc
#include "lane_contract.h"

namespace trireme::ps::tests {
namespace {

INSTANTIATE_TEST_SUITE_P(SharedMemory, LaneContract,
                         testing::Combine(testing::Values(Way::shm), testing::Values(1, 2, 4), testing::Values(1, 3)),
                         name_of);

}  // namespace
}  // namespace trireme::ps::tests
