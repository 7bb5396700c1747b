// Ranks that lose one of theirs and go on, for tests that kill it; or to whom another one comes:
//
//   regroup coordinator PORT RANKS [TARGET]
//                                      the coordinator of a job that changes its crew when a rank is lost, and takes
//                                      newcomers up to the target
//   regroup ranks                      for each line of numbers on standard input, forks a rank for each number; says
//                                      "over" when all of them have ended
//
// A rank reduces until somebody dies or comes, makes the next group, reduces again, and leaves. It says "RANK pid PID",
// "RANK running", then "RANK GROUP MILLISECONDS" (from the notice to the new group) or "RANK error TEXT". One whose
// number is beyond TRIREME_SIZE is a newcomer. A fork, because loading libtorch takes longer than all that.
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <iostream>
#include <sstream>
#include <string>

#include <trireme/base/error.h>
#include <trireme/cluster/coordination/coordinator.h>
#include <trireme/cluster/world.h>

namespace {

void say(int rank, const std::string& text) {
  const std::string line = fmt::format("{} {}\n", rank, text);
  if (write(1, line.data(), line.size()) < 0) _exit(1);
}

void check_sum(const trireme::Group& group, int rank) {
  std::vector<float> data(70001, static_cast<float>(rank + 1));
  group.comm().allreduce(data.data(), data.size(), trireme::DType::f32, trireme::Op::sum, "numbers");
  float wanted = 0;
  for (int other : group.ranks()) wanted += static_cast<float>(other + 1);
  for (float x : data)
    if (x != wanted) trireme::fail<trireme::Error>("{} instead of {}", x, wanted);
}

/// Whether one of the ranks has heard of a change that waits for them.
bool change_agreed(const trireme::World& world) {
  float wanted = world.change_wanted() ? 1 : 0;
  world.group().comm().allreduce(&wanted, 1, trireme::DType::f32, trireme::Op::sum, "wanted");
  return wanted > 0;
}

void row_until_the_crew_changes(const trireme::World& world) try {
  for (int i = 0; !change_agreed(world); i++) {
    check_sum(world.group(), world.rank());
    if (i == 3) say(world.rank(), "running");
  }
} catch (const trireme::PeerLost&) {
}

void run(int rank) {
  setenv("TRIREME_RANK", std::to_string(rank).c_str(), 1);
  if (rank >= std::atoi(std::getenv("TRIREME_SIZE"))) setenv("TRIREME_NEWCOMER", "1", 1);
  auto world = trireme::join({.timeout = trireme::Seconds(20)});
  say(rank, fmt::format("pid {}", getpid()));
  const bool newcomer = world.newcomer();
  if (!newcomer) row_until_the_crew_changes(world);
  const auto noticed = trireme::Clock::now();
  const trireme::Group& group = newcomer ? world.enter() : world.regroup();
  const double ms = trireme::seconds_since(noticed) * 1e3;
  for (int i = 0; i < 5; i++) check_sum(group, rank);
  const trireme::Group each = group.split(group.rank());
  check_sum(each, rank);
  say(rank, fmt::format("{} {:.2f}", group.describe(), ms));
  group.comm().barrier("end");
}

void fork_ranks(const std::string& line) {
  std::istringstream numbers(line);
  std::vector<pid_t> children;
  for (int rank = 0; numbers >> rank;) {
    children.push_back(fork());
    if (children.back() != 0) continue;
    try {
      run(rank);
    } catch (const std::exception& error) {
      say(rank, std::string("error ") + error.what());
    }
    _exit(0);
  }
  for (pid_t child : children) waitpid(child, nullptr, 0);
  std::printf("over\n");
  std::fflush(stdout);
}

}  // namespace

int main(int argc, char** argv) {
  const std::string what = argc > 1 ? argv[1] : "";
  if (what == "ranks") {
    for (std::string line; std::getline(std::cin, line);) fork_ranks(line);
    return 0;
  }
  if (what != "coordinator" || argc < 4 || argc > 5)
    return std::fprintf(stderr, "usage: %s coordinator PORT RANKS [TARGET] | ranks\n", argv[0]), 2;
  trireme::cluster::CoordinatorOptions options;
  options.port = std::atoi(argv[2]);
  options.ranks = std::atoi(argv[3]);
  options.token = std::getenv("TRIREME_TOKEN");
  options.on_loss = trireme::cluster::OnLoss::change_crew;
  trireme::cluster::Coordinator coordinator(options);
  if (argc == 5) coordinator.set_target(std::atoi(argv[4]));
  std::printf("ready\n");
  std::fflush(stdout);
  pause();
}
