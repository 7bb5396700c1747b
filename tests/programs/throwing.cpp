// Ranks that meet again and again until one of them throws. For tests of who is blamed.
//   throwing RANK uncaught|caught|before|exit|torch
//     uncaught: nobody catches what it throws, nor what the others throw because of it
//     caught:   all ranks' main() catches, prints and returns 1
//     before:   it throws before it joins
//     torch:    what it throws has a stack behind it, as libtorch's errors have in one of their two forms
//     exit:     it ends with exit code 3 and says nothing
// With a rank that there is not, they go on for ever.
#include <cstdio>
#include <cstdlib>
#include <stdexcept>
#include <string>

#include <trireme/base/error.h>
#include <trireme/cluster/world.h>

namespace {

void run(int culprit, const std::string& way) {
  const char* rank = std::getenv("RANK");
  const bool me = rank != nullptr && std::atoi(rank) == culprit;
  if (me && way == "before") throw std::runtime_error("no such file: weights.bin");
  auto world = trireme::join({.timeout = trireme::Seconds(20)});
  for (long step = 0;; step++) {
    world.comm().barrier("meeting");
    if (step == 0) std::puts("here"), std::fflush(stdout);
    if (step != 100 || world.rank() != culprit) continue;
    if (way == "exit") std::_Exit(3);
    const std::string stack = way == "torch" ? "\nframe #0: f + 0x68 (0x7f2a in lib.so)\nframe #1: main + 0x9" : "";
    throw std::runtime_error("the 3rd shard is damaged" + stack);
  }
}

}  // namespace

int main(int /*argc*/, char** argv) {
  const int culprit = std::atoi(argv[1]);
  const std::string way = argv[2];
  if (way != "caught") return run(culprit, way), 0;
  try {
    run(culprit, way);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "error: %s\n", error.what());
    return 1;
  }
  return 0;
}
