// Ranks that lose one of theirs and go on, for tests that kill it:
//
//   regroup coordinator PORT RANKS     the coordinator of a job that changes its crew when a rank is lost
//   regroup ranks                      for each line of numbers on standard input, forks a rank for each number; says
//                                      "over" when all of them have ended
//
// A rank reduces until somebody dies, makes the next group, reduces again, and leaves. It says "RANK pid PID", "RANK
// running", then "RANK GROUP MILLISECONDS" (from the notice to the new group) or "RANK error TEXT". A fork, because
// loading libtorch takes longer than all that.
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

void run(int rank) {
  setenv("TRIREME_RANK", std::to_string(rank).c_str(), 1);
  auto world = trireme::join({.timeout = trireme::Seconds(20)});
  say(rank, fmt::format("pid {}", getpid()));
  try {
    for (int i = 0;; i++) {
      check_sum(world.group(), rank);
      if (i == 3) say(rank, "running");
    }
  } catch (const trireme::PeerLost&) {
    const auto noticed = trireme::Clock::now();
    const trireme::Group& group = world.regroup();
    const double ms = trireme::seconds_since(noticed) * 1e3;
    for (int i = 0; i < 5; i++) check_sum(group, rank);
    const trireme::Group each = group.split(group.rank());
    check_sum(each, rank);
    say(rank, fmt::format("{} {:.2f}", group.describe(), ms));
    group.comm().barrier("end");
  }
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
  if (what != "coordinator" || argc != 4)
    return std::fprintf(stderr, "usage: %s coordinator PORT RANKS | ranks\n", argv[0]), 2;
  trireme::cluster::CoordinatorOptions options;
  options.port = std::atoi(argv[2]);
  options.ranks = std::atoi(argv[3]);
  options.token = std::getenv("TRIREME_TOKEN");
  options.on_loss = trireme::cluster::OnLoss::change_crew;
  const trireme::cluster::Coordinator coordinator(options);
  std::printf("ready\n");
  std::fflush(stdout);
  pause();
}
