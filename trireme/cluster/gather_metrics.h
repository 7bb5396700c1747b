#pragma once
// Everybody's metrics in one place, at the end of a run.
#include <vector>

#include <trireme/comm/communicator.h>
#include <trireme/metrics/snapshot.h>

namespace trireme::cluster {

/// Collective: what each rank has counted, by rank, on every rank.
std::vector<metrics::Snapshot> gather_metrics(comm::Communicator& comm, const metrics::Snapshot& mine);

}  // namespace trireme::cluster
