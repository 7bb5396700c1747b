#include <trireme/compress/kernels.h>

namespace trireme::compress {

namespace avx512 {
extern const Kernels kTable;
}
namespace avx2 {
extern const Kernels kTable;
}
namespace plain {
extern const Kernels kTable;
}

std::vector<const Kernels*> runnable_kernels() {
  std::vector<const Kernels*> found;
  __builtin_cpu_init();
  const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
  if (avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
      __builtin_cpu_supports("avx512vl"))
    found.push_back(&avx512::kTable);
  if (avx2) found.push_back(&avx2::kTable);
  found.push_back(&plain::kTable);
  return found;
}

const Kernels& kernels() {
  static const Kernels& best = *runnable_kernels().front();
  return best;
}

}  // namespace trireme::compress
