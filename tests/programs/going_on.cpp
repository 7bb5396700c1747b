// A rank that reduces until another one is lost, goes on in the next group, and ends well: for tests of launchers.
// `going_on dies RANK` kills that rank in the middle; `going_on end` ends when all have reduced a few times.
#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include <trireme/base/error.h>
#include <trireme/cluster/world.h>

namespace {

float reduced(const trireme::Group& group, int rank) {
  std::vector<float> data(1000, static_cast<float>(rank + 1));
  group.comm().allreduce(data.data(), data.size(), trireme::DType::f32, trireme::Op::sum, "numbers");
  return data.back();
}

}  // namespace

int main(int argc, char** argv) {
  const int victim = argc == 3 && std::string(argv[1]) == "dies" ? std::atoi(argv[2]) : -1;
  auto world = trireme::join({.timeout = trireme::Seconds(20)});
  for (const std::string& warning : world.warnings()) std::printf("warning: %s\n", warning.c_str());
  try {
    for (int i = 0; i < 200 || victim >= 0; i++) {
      reduced(world.group(), world.rank());
      if (i == 100 && world.rank() == victim) kill(getpid(), SIGKILL);
    }
    std::printf("sum %g\n", reduced(world.group(), world.rank()));
  } catch (const trireme::PeerLost& lost) {
    const trireme::Group& group = world.regroup();
    std::printf("%s: sum %g; %s\n", group.describe().c_str(), reduced(group, world.rank()), lost.what());
    group.comm().barrier("end");
  }
}
