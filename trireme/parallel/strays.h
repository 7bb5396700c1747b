#pragma once
// Where a folder of checkpoints is on one host's own disk, the ranks of other hosts cannot write to it: what nobody
// else has goes over the network to rank 0.
#include <cstddef>
#include <cstdint>
#include <map>
#include <vector>

#include <trireme/comm/communicator.h>
#include <trireme/state/image.h>
#include <trireme/state/owners.h>
#include <trireme/state/snapshot.h>

namespace trireme {

/// Of ranks that do not see the folder.
struct Strays {
  state::Image state;                            // their ranges of vectors, their scalars and rows
  std::map<int, std::vector<std::byte>> random;  // of their random numbers, by rank
};

/// Collective, and blocks: all of it, on rank 0; nothing on others. `sees`: by rank, rank 0 does. A snapshot has what
/// `division` gives its rank, and `random` is the state of this rank's random numbers.
Strays collect_strays(comm::Communicator& ranks, const std::vector<uint8_t>& sees, const state::OwnerMap& division,
                      state::Snapshot& snapshot, const std::vector<std::byte>& random);

/// A scalar that says which work was given out: who saves says where the run is, so it is kept in no checkpoint.
bool is_of_work(const std::string& scalar);

}  // namespace trireme
