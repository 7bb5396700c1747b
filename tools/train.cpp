// `trireme train`: started by a person it launches one worker process per rank; started by a launcher it becomes a worker.
#include <fmt/format.h>
#include <unistd.h>

#include <cstdlib>
#include <memory>

#include <trireme/base/error.h>
#include <trireme/cluster/launcher.h>
#include "commands.h"
#include "train.h"

namespace trireme::tools {
namespace {

std::vector<std::string> worker_command(const TrainSettings& settings, const Invocation& invocation) {
  std::vector<std::string> command = {invocation.worker};
  command.insert(command.end(), invocation.args.begin(), invocation.args.end());
  command.push_back("--progress=" + settings.progress);
  return command;
}

std::vector<std::string> server_command(const TrainSettings& settings, const Invocation& invocation) {
  return {invocation.program,  "serve",
          "--timeout",         fmt::format("{:g}", settings.timeout),
          "--heartbeat-limit", fmt::format("{:g}", settings.hosts.heartbeat_limit)};
}

cluster::LaunchResult launch_workers(const TrainSettings& settings, const Invocation& invocation) {
  cluster::LaunchOptions options{
      .command = worker_command(settings, invocation), .ranks = settings.workers, .threads = settings.threads, .show = cluster::Show::first};
  options.server_command = server_command(settings, invocation);
  for (int server = 0; server < settings.servers; server++) options.servers.push_back(server);
  const cluster::LaunchResult result = cluster::launch(options);
  explain_end(result, result.first_failed == 0 && result.exit_code < 128);  // rank 0 has said itself why it ended
  return result;
}

cluster::LaunchResult launch_on_hosts(const TrainSettings& settings, const cluster::Place& place, const Invocation& invocation) {
  cluster::HostsOptions options = settings.hosts.options(invocation.program);
  if (settings.engine == "mpi" || (settings.engine == "auto" && place.engine == "mpi"))
    fail<InvalidArgument>("--engine mpi needs ranks that mpirun has started: `mpirun --host ... trireme train ...` instead of --hosts, or --engine gloo");
  options.timeout = Seconds(settings.timeout);
  options.token = place.token;
  if (options.tls.empty()) options.tls = place.tls;
  if (!place.engine.empty()) options.environment.emplace_back("TRIREME_ENGINE", place.engine);
  options.command = worker_command(settings, invocation);
  options.server_command = server_command(settings, invocation);
  options.servers = settings.servers;
  options.show = cluster::Show::first;
  for (const char* name : {"OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"})
    options.environment.emplace_back(name, std::to_string(settings.threads));
  const cluster::LaunchResult result = cluster::launch_on_hosts(options);
  explain_end(result, false);
  return result;
}

/// Becomes another program, in place.
[[noreturn]] void become(std::vector<std::string> command) {
  std::vector<char*> argv;
  for (std::string& word : command) argv.push_back(word.data());
  argv.push_back(nullptr);
  execv(argv[0], argv.data());
  fail<IoError>("cannot start {}: {}. It belongs beside this program", command[0], errno_text());
}

/// What a launcher started: a rank, or ps-lite's scheduler, which is the coordinator and no rank.
[[noreturn]] void become_part(const TrainSettings& settings, const cluster::Place& place, const Invocation& invocation) {
  if (settings.hosts.given())
    fail<InvalidArgument>("--hosts or --hostfile, but {} says where the ranks are: leave the flag out, or start this by hand", place.launcher);
  if (!settings.hosts.tls.empty()) setenv("TRIREME_TLS", settings.hosts.tls.c_str(), 1);
  if (place.role == "scheduler") {
    setenv("TRIREME_TOKEN", place.token.c_str(), 1);
    const std::string port = place.coordinator.substr(place.coordinator.rfind(':') + 1);
    std::vector<std::string> command = {invocation.program,
                                        "coordinator",
                                        "--ranks",
                                        std::to_string(place.size),
                                        "--servers",
                                        std::to_string(place.servers),
                                        "--port",
                                        port,
                                        "--job",
                                        place.job,
                                        "--heartbeat-limit",
                                        fmt::format("{:g}", settings.hosts.heartbeat_limit)};
    if (const std::string& folder = settings.hosts.tls.empty() ? place.tls : settings.hosts.tls; !folder.empty())
      command.insert(command.end(), {"--tls", folder});
    become(std::move(command));
  }
  if (place.role == "server") become(server_command(settings, invocation));
  std::vector<std::string> command = {invocation.worker};
  command.insert(command.end(), invocation.args.begin(), invocation.args.end());
  become(std::move(command));
}

}  // namespace

cluster::LaunchResult launch_training(const TrainSettings& settings, const cluster::Place& place, const Invocation& invocation) {
  return settings.hosts.given() ? launch_on_hosts(settings, place, invocation) : launch_workers(settings, invocation);
}

Run add_train(CLI::App& app, const Invocation& invocation) {
  auto settings = std::make_shared<TrainSettings>();
  add_train_flags(app, *settings);
  return [settings, invocation] {
    const cluster::Place place = cluster::place_here();
    if (place.launcher != "alone") become_part(*settings, place, invocation);
    resolve(*settings, place);
    return launch_training(*settings, place, invocation).exit_code;
  };
}

}  // namespace trireme::tools
