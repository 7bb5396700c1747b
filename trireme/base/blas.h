#pragma once
// The matrix products below libtorch. OpenBLAS picks its kernels by the processor's model number when it is loaded; a
// model that is newer than the library gets those of a Pentium 4. OPENBLAS_CORETYPE helps, but only if it is set before
// the program starts.
#include <string>
#include <string_view>

namespace trireme {

struct VectorUnits {
  bool avx2 = false;    // with FMA
  bool avx512 = false;  // F, BW, DQ, VL
  bool bf16 = false;    // multiplies numbers of 16 bits: AVX512-BF16 or AMX
};
VectorUnits vector_units();

/// The value of OPENBLAS_CORETYPE that suits the processor, if `chosen` (what OpenBLAS calls its choice) wastes it; ""
/// if not.
std::string better_openblas_core(std::string_view chosen, const VectorUnits& units);

/// The choice of the OpenBLAS in this process; with `load`, of the one that programs on this machine would get. "":
/// there is none.
std::string openblas_core(bool load);

/// For programs that this process starts: sets OPENBLAS_CORETYPE where that helps, unless the user has. Before there
/// are threads.
void help_openblas();

}  // namespace trireme
