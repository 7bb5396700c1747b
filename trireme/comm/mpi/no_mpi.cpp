// In place of mpi.cpp where Open MPI was not found.
#include <trireme/base/error.h>
#include <trireme/comm/mpi/mpi.h>

namespace trireme::comm::mpi {

bool available() { return false; }
void add() {}
std::unique_ptr<network::Transport> world() {
  fail<InvalidArgument>("Trireme was built without Open MPI (packages openmpi-bin and libopenmpi-dev)");
}

}  // namespace trireme::comm::mpi
