#include <dlfcn.h>

#include <algorithm>
#include <array>
#include <cstdlib>

#include <trireme/base/blas.h>

namespace trireme {

VectorUnits vector_units() {
  return {.avx2 = __builtin_cpu_supports("avx2") != 0 && __builtin_cpu_supports("fma") != 0,
          .avx512 = __builtin_cpu_supports("avx512f") != 0 && __builtin_cpu_supports("avx512bw") != 0 &&
                    __builtin_cpu_supports("avx512dq") != 0 && __builtin_cpu_supports("avx512vl") != 0,
          .bf16 = __builtin_cpu_supports("avx512bf16") != 0 || __builtin_cpu_supports("amx-bf16") != 0};
}

std::string better_openblas_core(std::string_view chosen, const VectorUnits& units) {
  constexpr std::array<std::string_view, 8> kOld = {"Generic",  "Katmai", "Coppermine", "Northwood",
                                                    "Prescott", "Banias", "Core2",      "Penryn"};
  if (std::find(kOld.begin(), kOld.end(), chosen) == kOld.end()) return "";
  return units.avx512 ? "SkylakeX" : units.avx2 ? "Haswell" : "";
}

std::string openblas_core(bool load) {
  const bool limit = load && std::getenv("OPENBLAS_NUM_THREADS") == nullptr;
  if (limit) setenv("OPENBLAS_NUM_THREADS", "1", 1);  // it starts its threads when it is loaded
  void* const library = dlopen("libopenblas.so.0", RTLD_LAZY | RTLD_LOCAL | (load ? 0 : RTLD_NOLOAD));
  if (limit) unsetenv("OPENBLAS_NUM_THREADS");
  if (library == nullptr) return "";
  using GetName = char* (*)();
  const auto name = reinterpret_cast<GetName>(dlsym(library, "openblas_get_corename"));
  std::string core = name != nullptr ? name() : "";
  dlclose(library);
  return core;
}

void help_openblas() {
  if (std::getenv("OPENBLAS_CORETYPE") != nullptr || !vector_units().avx2) return;
  if (const std::string better = better_openblas_core(openblas_core(true), vector_units()); !better.empty())
    setenv("OPENBLAS_CORETYPE", better.c_str(), 1);
}

}  // namespace trireme
