#include <cstdlib>
#include <filesystem>

#include "peers.h"

namespace trireme::tools {

bool has_python_torch() {
  static const bool found =
      std::filesystem::exists(kPython) &&
      std::system(
          "/usr/bin/python3 -c 'import importlib.util as u; exit(u.find_spec(\"torch\") is None)' >/dev/null 2>&1") ==
          0;
  return found;
}

bool has_open_mpi() {
  static const bool found = std::system("command -v mpicc >/dev/null && command -v mpirun >/dev/null") == 0;
  return found;
}

std::string peer_program(const std::string& file) { return std::string(TRIREME_PEERS) + "/" + file; }

const std::vector<Peer>& peers() {
  static const std::vector<Peer> all = {
      {"PyTorch", "python3-torch: the DDP and Gloo peers of `trireme bench`", "apt-get install python3-torch",
       has_python_torch},
      {"Open MPI", "the Open MPI peer of `trireme bench`", "apt-get install openmpi-bin libopenmpi-dev", has_open_mpi},
  };
  return all;
}

}  // namespace trireme::tools
