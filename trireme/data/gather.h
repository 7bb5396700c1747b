#pragma once
// What every rank has, for every rank.
#include <cstdint>
#include <string>
#include <vector>

#include <trireme/comm/shm/communicator.h>

namespace trireme::data {

/// The counts of all ranks, rank after rank; each gives as many. Collective.
std::vector<int64_t> gather_counts(comm::shm::Communicator& group, const std::vector<int64_t>& mine, const char* name);

/// The bytes of each rank, by rank; any number of them. Collective.
std::vector<std::string> gather_bytes(comm::shm::Communicator& group, const std::string& mine, const char* name);

}  // namespace trireme::data
