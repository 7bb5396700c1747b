// A rank of a job whose crew changes, for tests of launchers. It adds up numbers with the others, step after step, goes
// through deaths and joins, and ends when there is a file FOLDER/stop, or after SIGINT.
//
//   elastic FOLDER              says "pid PID", and "epoch E of RANKS" whenever the crew is another one
//   elastic FOLDER newcomers    the same, but those who come later die of an error
//   elastic FOLDER ready        the same, but those who come later take their time, until there is a file FOLDER/ready
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <csignal>
#include <cstdio>
#include <filesystem>
#include <string>
#include <thread>

#include <trireme/base/error.h>
#include <trireme/cluster/world.h>

namespace {

std::atomic<bool> interrupted{false};

void say(const std::string& text) {
  std::puts(text.c_str());
  std::fflush(stdout);
}

void say_crew(const trireme::Group& group) {
  say(fmt::format("epoch {} of {}", group.epoch(), fmt::join(group.ranks(), ",")));
}

struct Agreed {
  bool change = false, stop = false;
};

/// One step of all: what one of them wants, all hear.
Agreed step(trireme::World& world, bool stop) {
  std::array<float, 3> sums = {world.change_wanted() ? 1.F : 0.F, stop ? 1.F : 0.F, 1.F};
  world.comm().allreduce(sums.data(), sums.size(), trireme::DType::f32, trireme::Op::sum, "wishes");
  if (sums[2] != static_cast<float>(world.group().size()))
    trireme::fail<trireme::Error>("{} ranks have added up to {}", world.group().size(), sums[2]);
  return {sums[0] > 0, sums[1] > 0};
}

void work(const std::filesystem::path& folder, const std::string& way) {
  trireme::World world = trireme::join({.timeout = trireme::Seconds(20)});
  say(fmt::format("pid {}", getpid()));
  if (world.newcomer()) {
    if (way == "newcomers") trireme::fail<trireme::Error>("there is nothing to eat here");
    while (way == "ready" && !exists(folder / "ready")) std::this_thread::sleep_for(std::chrono::milliseconds(10));
    world.enter();
  }
  say_crew(world.group());
  while (true) {
    try {
      const Agreed agreed = step(world, interrupted || exists(folder / "stop"));
      if (agreed.change)
        say_crew(world.regroup());
      else if (agreed.stop)
        break;
    } catch (const trireme::PeerLost&) {
      say_crew(world.regroup());
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
  say("done");
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 2) return std::fprintf(stderr, "usage: %s FOLDER [newcomers|ready]\n", argv[0]), 2;
  std::signal(SIGINT, [](int) { interrupted = true; });
  try {
    work(argv[1], argc > 2 ? argv[2] : "");
    return 0;
  } catch (const trireme::Dismissed& dismissed) {
    say(std::string("dismissed: ") + dismissed.what());
    return 0;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return dynamic_cast<const trireme::PeerLost*>(&error) != nullptr ? trireme::cluster::kPeerLostExit : 1;
  }
}
