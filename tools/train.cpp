// `trireme train`: started by a person it launches one worker process per rank; started by a launcher it becomes a
// worker.
#include <fmt/format.h>

#include <cstdio>
#include <cstdlib>
#include <memory>

#include <trireme/base/error.h>
#include <trireme/cluster/launching/launcher.h>

#include "become.h"
#include "commands.h"
#include "idle_flags.h"
#include "restarts.h"
#include "train.h"

namespace trireme::tools {
namespace {

constexpr const char* kThreadVariables[] = {"OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"};

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

/// A line that overwrites itself may stand on the terminal.
void say_over(const TrainSettings& settings, const std::string& sentence) {
  if (settings.progress == "line") std::fputs("\r\x1b[K", stderr);
  print_error(sentence);
}

std::string saves(const TrainSettings& settings) {
  const std::string model = settings.options.save.empty() ? "" : "the model to " + settings.options.save;
  const std::string& dir = settings.options.keeping.dir;
  if (dir.empty()) return model;
  return fmt::format("{}{}a checkpoint to {}", model, model.empty() ? "" : " and ", dir);
}

/// After a death, or only where nobody is left of a crew that changes.
bool may_start_again(const TrainSettings& settings) {
  return settings.starts_again || (settings.elasticity.on_failure == cluster::OnFailure::replace &&
                                   !settings.options.keeping.dir.empty() && settings.hosts.remote != cluster::kByHand);
}

cluster::LaunchResult launch_once(const TrainSettings& settings, const Invocation& invocation, int workers,
                                  const std::vector<std::string>& flags) {
  cluster::LaunchOptions options{.command = worker_command(settings, invocation),
                                 .ranks = workers,
                                 .threads = settings.threads,
                                 .show = cluster::Show::first};
  options.command.insert(options.command.end(), flags.begin(), flags.end());
  if (!settings.starts_again) options.elasticity = settings.elasticity;
  options.silence = Seconds(settings.silence);
  options.server_command = server_command(settings, invocation);
  for (int server = 0; server < settings.servers; server++) options.servers.push_back(server);
  if (settings.servers > 0) options.replicas = settings.replicas;
  options.say = [&](const std::string& sentence) { say_over(settings, sentence); };
  options.saves = saves(settings);
  return cluster::launch(options);
}

cluster::LaunchResult launch_workers(const TrainSettings& settings, const Invocation& invocation) {
  check_address_limit(invocation.worker);
  const auto launch = [&](int workers, const std::vector<std::string>& flags) {
    return launch_once(settings, invocation, workers, flags);
  };
  const auto say = [&](const std::string& sentence) { say_over(settings, sentence); };
  const cluster::LaunchResult result =
      may_start_again(settings) ? launch_again_and_again(settings, launch, say) : launch(settings.workers, {});
  explain_end(result, result.first_failed == 0 && result.exit_code < 128);  // rank 0 has said itself why it ended
  return result;
}

cluster::LaunchResult launch_on_hosts_once(const TrainSettings& settings, const cluster::Place& place,
                                           const Invocation& invocation, const cluster::Hosts& hosts,
                                           const std::vector<std::string>& flags) {
  cluster::HostsOptions options = settings.hosts.options(invocation.program);
  options.hosts = hosts;
  if (settings.engine.starts_with("mpi") || (settings.engine == "auto" && place.engine.starts_with("mpi")))
    fail<InvalidArgument>(
        "--engine mpi needs ranks that mpirun has started: `mpirun --host ... trireme train ...` instead of --hosts, "
        "or --engine stream or gloo");
  options.timeout = Seconds(settings.timeout);
  options.token = place.token;
  if (options.tls.empty()) options.tls = place.tls;
  const std::string engine = settings.engine != "auto" ? settings.engine : place.engine;
  cluster::engine_for(engine, !options.tls.empty(), false);  // refused before anything is started
  if (!place.engine.empty()) options.environment.emplace_back("TRIREME_ENGINE", place.engine);
  options.command = worker_command(settings, invocation);
  options.command.insert(options.command.end(), flags.begin(), flags.end());
  if (!settings.starts_again) options.elasticity = settings.elasticity;
  options.server_command = server_command(settings, invocation);
  options.servers = settings.servers;
  options.show = cluster::Show::first;
  options.say = [&](const std::string& sentence) { say_over(settings, sentence); };
  options.saves = saves(settings);
  for (const char* name : kThreadVariables) options.environment.emplace_back(name, std::to_string(settings.threads));
  return cluster::launch_on_hosts(options);
}

cluster::LaunchResult launch_on_hosts(const TrainSettings& settings, const cluster::Place& place,
                                      const Invocation& invocation) {
  cluster::Hosts hosts = settings.hosts.options(invocation.program).hosts;
  int failed = -1;  // host number
  const auto launch = [&](int workers, const std::vector<std::string>& flags) {
    hosts = hosts_for(hosts, workers, failed);
    const cluster::LaunchResult result = launch_on_hosts_once(settings, place, invocation, hosts, flags);
    failed = result.first_failed;
    return result;
  };
  const auto say = [&](const std::string& sentence) { say_over(settings, sentence); };
  const cluster::LaunchResult result =
      may_start_again(settings) ? launch_again_and_again(settings, launch, say) : launch(settings.workers, {});
  explain_end(result, false);
  return result;
}

/// What a launcher started: a rank, or ps-lite's scheduler, which is the coordinator and no rank.
[[noreturn]] void become_part(const TrainSettings& settings, const cluster::Place& place,
                              const Invocation& invocation) {
  if (settings.hosts.given())
    fail<InvalidArgument>(
        "--hosts or --hostfile, but {} says where the ranks are: leave the flag out, or start this by hand",
        place.launcher);
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
  become_worker(invocation);
}

}  // namespace

cluster::LaunchResult launch_training(const TrainSettings& settings, const cluster::Place& place,
                                      const Invocation& invocation) {
  return settings.hosts.given() ? launch_on_hosts(settings, place, invocation) : launch_workers(settings, invocation);
}

Run add_train(CLI::App& app, const Invocation& invocation) {
  auto settings = std::make_shared<TrainSettings>();
  const CLI::App* command = add_train_flags(app, *settings);
  return [settings, command, invocation] {
    const cluster::Place place = cluster::place_here();
    const bool alone = place.launcher == "alone";
    choose_optimizer(*settings);  // an unknown name is said first: flags depend on it
    exchange::sync_named(settings->sync);
    train::check_schedule_name(settings->options.schedule);
    refuse_idle_flags(*command, *settings, alone, invocation);
    if (!alone) {
      if (command->count("--threads") > 0 || std::getenv("OMP_NUM_THREADS") == nullptr) set_threads(settings->threads);
      become_part(*settings, place, invocation);
    }
    resolve(*settings, place);
    return launch_training(*settings, place, invocation).exit_code;
  };
}

}  // namespace trireme::tools
