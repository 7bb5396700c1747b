// Whether what was asked for can be launched; run.cpp does it.
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <random>

#include <trireme/base/descriptor.h>
#include <trireme/base/error.h>
#include <trireme/cluster/launching/launcher.h>

#include "run.h"

namespace trireme::cluster {
namespace {

constexpr int kMostServers = 256;

/// The servers of this launcher, and how many there are in all.
void check_servers(LaunchOptions& options) {
  if (options.total_servers == 0) options.total_servers = static_cast<int>(options.servers.size());
  if (options.total_servers < 0 || options.total_servers > kMostServers)
    fail<InvalidArgument>("the number of servers must be 0 to {}, not {}", kMostServers, options.total_servers);
  if (options.servers.empty()) return;
  if (options.server_command.empty())
    fail<InvalidArgument>("{} servers are to be launched, but there is no program for them", options.servers.size());
  if (!options.commands.empty())
    fail<InvalidArgument>("servers are launched beside ranks, and these processes are none");
  if (options.replicas < 0 || options.replicas >= options.total_servers)
    fail<InvalidArgument>("{} replicas of {} servers: there must be fewer", options.replicas, options.total_servers);
  std::vector<int> sorted = options.servers;
  std::sort(sorted.begin(), sorted.end());
  if (sorted.front() < 0 || sorted.back() >= options.total_servers ||
      std::adjacent_find(sorted.begin(), sorted.end()) != sorted.end())
    fail<InvalidArgument>("servers to launch must be different, and from 0 to {}", options.total_servers - 1);
}

}  // namespace

namespace {

constexpr int kKilled = 128;  // exit codes above it are those of signals

LaunchResult launch_once(LaunchOptions options) {
  if (options.job.empty()) options.job = random_name();
  if (options.master_port == 0) options.master_port = free_port();
  return LaunchRun(std::move(options)).run();
}

/// Nobody can go on without one that was killed before all of the first crew had come: they would wait for it.
LaunchResult launch_until_under_way(const LaunchOptions& options) {
  for (BackOff deaths; true;) {
    LaunchResult result = launch_once(options);
    if (result.under_way || result.interrupted || !result.failed || result.exit_code <= kKilled) return result;
    const Clock::time_point now = Clock::now();
    deaths = after_death(deaths, now, now, false);
    const double pause = Seconds(deaths.not_before - now).count();
    if (options.say)
      options.say(
          deaths.given_up()
              ? fmt::format("{} launches in a row have lost a worker before all had come: there is no other",
                            deaths.early)
              : fmt::format("{}, before all workers had come. All start again in {:g} s", result.reason, pause));
    if (deaths.given_up()) return result;
    poll(nullptr, 0, static_cast<int>(pause * 1e3));  // a signal ends it at once: there is nobody to be asked to stop
  }
}

}  // namespace

std::string random_name() {
  std::random_device source;
  return fmt::format("{:08x}{:08x}", source(), source());
}

int free_port() {
  const Descriptor socket_(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof address;
  if (bind(socket_.get(), reinterpret_cast<sockaddr*>(&address), size) != 0) return 29500;
  getsockname(socket_.get(), reinterpret_cast<sockaddr*>(&address), &size);
  return ntohs(address.sin_port);
}

LaunchResult launch(const LaunchOptions& given) {
  LaunchOptions options = given;
  if (!options.commands.empty()) options.ranks = static_cast<int>(options.commands.size());
  if (options.command.empty() && options.commands.empty())
    fail<InvalidArgument>("nothing to launch: give a program after --");
  if (options.ranks < 1 || options.ranks > kMostWorkers)
    fail<InvalidArgument>("the number of ranks must be 1 to {}, not {}", kMostWorkers, options.ranks);
  check_servers(options);
  if (options.commands.empty()) check_elasticity(options.elasticity, options.ranks);
  if (options.size == 0) options.size = options.ranks;
  return launch_until_under_way(options);
}

}  // namespace trireme::cluster
