// label: unit
#include <gtest/gtest.h>

#include <cstdlib>

#include <trireme/base/blas.h>

namespace trireme::tests {
namespace {

TEST(Blas, KernelsOfAnOldProcessorWasteANewOne) {
  EXPECT_EQ(better_openblas_core("Prescott", {.avx2 = true, .avx512 = true}), "SkylakeX");
  EXPECT_EQ(better_openblas_core("Prescott", {.avx2 = true}), "Haswell");
  EXPECT_EQ(better_openblas_core("Core2", {.avx2 = true}), "Haswell");
  EXPECT_EQ(better_openblas_core("Prescott", {}), "");
}

TEST(Blas, AGoodChoiceIsLeftAlone) {
  for (const char* core : {"SkylakeX", "Cooperlake", "Haswell", "Zen", "Sandybridge", ""})
    EXPECT_EQ(better_openblas_core(core, {.avx2 = true, .avx512 = true}), "") << core;
}

TEST(Blas, TheUsersChoiceStays) {
  setenv("OPENBLAS_CORETYPE", "Nehalem", 1);
  help_openblas();
  EXPECT_STREQ(std::getenv("OPENBLAS_CORETYPE"), "Nehalem");
  unsetenv("OPENBLAS_CORETYPE");
}

/// With the library that is installed here, whatever it is: what is set is what was found to be better, and it is a
/// name that OpenBLAS knows.
TEST(Blas, TheInstalledLibraryIsAsked) {
  unsetenv("OPENBLAS_CORETYPE");
  const std::string better = better_openblas_core(openblas_core(true), vector_units());
  help_openblas();
  const char* const value = std::getenv("OPENBLAS_CORETYPE");
  EXPECT_EQ(value == nullptr ? "" : value, better);
  EXPECT_EQ(std::getenv("OPENBLAS_NUM_THREADS"), nullptr);
  unsetenv("OPENBLAS_CORETYPE");
}

}  // namespace
}  // namespace trireme::tests
