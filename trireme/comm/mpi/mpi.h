#pragma once
// Open MPI's messages as an engine, for clusters that start jobs with mpirun or a batch system. Without Open MPI at
// build time nothing of this is available.
#include <memory>

#include <trireme/comm/network/transport.h>

namespace trireme::comm::mpi {

/// Open MPI is compiled in, and an MPI launcher has started this process.
bool available();

/// Adds the engine "mpi", when Open MPI is compiled in.
void add();

/// Collective over all processes that the MPI launcher started: needs no store and no address. Throws InvalidArgument
/// unless available().
std::unique_ptr<network::Transport> world();

}  // namespace trireme::comm::mpi
