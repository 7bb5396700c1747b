// `trireme coordinator`: the coordinator of a job that spans machines, alone in a process.
#include <fmt/format.h>
#include <poll.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <memory>
#include <optional>

#include <trireme/base/descriptor.h>
#include <trireme/base/error.h>
#include <trireme/cluster/coordination/coordinator.h>
#include <trireme/cluster/coordination/tls.h>

#include "commands.h"
#include "duration_flag.h"
#include "elastic_flags.h"

namespace trireme::tools {
namespace {

constexpr Seconds kGrace{10};  // for the members of a failed job to leave

struct Options {
  cluster::CoordinatorOptions coordinator;
  std::string token_file, workers;
  double heartbeat_limit = 3, rejoin_timeout = 60, patience = 60;
};

/// A job whose workers may come and go.
void make_elastic(Options& options) {
  if (options.workers.empty()) return;
  const cluster::Workers workers = cluster::workers_named(options.workers);
  cluster::CoordinatorOptions& o = options.coordinator;
  if (o.ranks < workers.least || o.ranks > workers.most)
    fail<InvalidArgument>("--ranks {} begin, but --workers {} is what there may be: that is not within", o.ranks,
                          options.workers);
  o.on_loss = cluster::OnLoss::change_crew;
  o.least = workers.least;
  o.most = workers.most;
  o.rejoin_timeout = Seconds(options.rejoin_timeout);
}

/// From the file, the environment, or new. A new one is printed: members need it.
std::string token_for(const Options& options) {
  std::string token;
  if (!options.token_file.empty()) {
    std::ifstream file(options.token_file);
    if (!(file >> token)) fail<IoError>("cannot read a token from {}: {}", options.token_file, errno_text());
    return token;
  }
  if (const char* given = std::getenv("TRIREME_TOKEN"); given != nullptr && *given != '\0') return given;
  token = cluster::make_token();
  fmt::print("new token; on all hosts:  export TRIREME_TOKEN={}\n", token);
  return token;
}

Descriptor caught_signals() {
  sigset_t caught;
  sigemptyset(&caught);
  for (int signal : {SIGINT, SIGTERM}) sigaddset(&caught, signal);
  sigprocmask(SIG_BLOCK, &caught, nullptr);
  return Descriptor(signalfd(-1, &caught, SFD_CLOEXEC | SFD_NONBLOCK));
}

/// Prints until the job has ended, was interrupted, or has failed and its members had time to leave. The exit code, or
/// nothing where the job goes on: with a journal SIGTERM ends this coordinator alone, and the next one takes it over.
std::optional<int> stay(cluster::Coordinator& coordinator, const Descriptor& signals, bool journal) {
  std::optional<Deadline> end;
  bool interrupted = false;
  while (true) {
    for (const std::string& event : coordinator.take_events()) fmt::print("{}\n", event);
    std::fflush(stdout);
    const cluster::Snapshot now = coordinator.snapshot();
    if (!now.failures.empty() && !end) end.emplace(kGrace);
    if (now.ended || (end && end->passed())) return interrupted ? 130 : now.failures.empty() ? 0 : 1;
    pollfd polls[] = {{coordinator.descriptor(), POLLIN, 0}, {signals.get(), POLLIN, 0}};
    poll(polls, 2, end ? static_cast<int>(end->left().count() * 1e3) + 1 : -1);
    signalfd_siginfo info{};
    if (read(signals.get(), &info, sizeof info) != sizeof info) continue;
    if (interrupted) return 130;
    if (journal && info.ssi_signo == SIGTERM && now.failures.empty()) return std::nullopt;
    interrupted = true;
    coordinator.fail_job("the coordinator was interrupted");
  }
}

}  // namespace

Run add_coordinator(CLI::App& app, const Invocation&) {
  auto options = std::make_shared<Options>();
  cluster::CoordinatorOptions& coordinator = options->coordinator;
  CLI::App* command = app.add_subcommand(
      "coordinator",
      "Run the coordinator of a job that spans machines, where no launcher brings one (Kubernetes, Slurm, by hand)");
  command->add_option("-n,--ranks", coordinator.ranks, "Ranks of the job, over all hosts")->required();
  command
      ->add_option("--workers", options->workers,
                   "LEAST:MOST: the job goes on when ranks are lost, as long as LEAST are left, and takes up newcomers "
                   "to MOST (docs/elastic.md)")
      ->check(workers_flag());
  command
      ->add_option("--rejoin-timeout", options->rejoin_timeout,
                   "--workers: with fewer than LEAST left, how long to wait for others: 60 (seconds), 10m")
      ->transform(duration_flag())
      ->capture_default_str();
  command->add_option("--servers", coordinator.servers, "Parameter servers of the job, beside its ranks")
      ->capture_default_str();
  command->add_option("--port", coordinator.port, "To listen on; 0: any that is free")->capture_default_str();
  command->add_option("--address", coordinator.address, "To listen on")->capture_default_str();
  command->add_option("--job", coordinator.job, "Name of the job; members of another are refused")
      ->capture_default_str();
  command->add_option("--token-file", options->token_file,
                      "File with the job's token; without it TRIREME_TOKEN, or a new one, which is printed");
  command->add_option("--tls", coordinator.tls,
                      "Folder of `trireme tls init`: encrypt, and hear nobody without a certificate of it");
  command
      ->add_option("--heartbeat-limit", options->heartbeat_limit,
                   "Seconds of silence after which a member counts as dead")
      ->capture_default_str();
  command->add_option(
      "--journal", coordinator.journal,
      "File in which this coordinator writes down what another one must know. Started again with it, on the "
      "same host and --port, it takes the job over (docs/coordinator.md)");
  command
      ->add_option("--coordinator-patience", options->patience,
                   "--journal: how long ranks and servers go on without a coordinator: 60 (seconds), 10m")
      ->transform(duration_flag())
      ->capture_default_str();
  command->footer(
      "Ends when all ranks and servers have registered and left: exit code 0, or 1 when one of them failed. Ctrl-C "
      "fails the job for all; so does SIGTERM, but with --journal that ends the coordinator alone.\n"
      "Kubernetes probes: `grpc: {port: PORT}`, gRPC's standard health service on the same port; with --tls, "
      "`tcpSocket`.\n"
      "Example:\n  trireme coordinator --ranks 4 --port 7070");
  return [options] {
    make_elastic(*options);
    options->coordinator.heartbeat_limit = Seconds(options->heartbeat_limit);
    options->coordinator.patience = Seconds(options->patience);
    options->coordinator.token = token_for(*options);
    const Descriptor signals = caught_signals();  // before there are threads
    cluster::Coordinator running(options->coordinator);
    const std::string servers =
        options->coordinator.servers == 0 ? "" : fmt::format(" and {} servers", options->coordinator.servers);
    fmt::print("coordinator of job '{}' for {} ranks{}: {}:{}{}\n", options->coordinator.job,
               options->coordinator.ranks, servers, cluster::own_host_name(), running.port(),
               options->coordinator.tls.empty() ? "" : " (TLS)");
    const bool journal = !options->coordinator.journal.empty();
    const std::optional<int> end = stay(running, signals, journal);
    if (end) running.conclude();
    if (!end)
      fmt::print("this coordinator ends; the job goes on for {:g} s, in which another one can take it over\n",
                 options->patience);
    return end.value_or(0);
  };
}

}  // namespace trireme::tools
