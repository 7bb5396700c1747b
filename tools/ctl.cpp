// `trireme ctl`: a word with running jobs.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <memory>
#include <set>

#include <trireme/base/error.h>
#include <trireme/cluster/control_door.h>
#include <trireme/cluster/status_door.h>
#include <trireme/ps/control.h>

#include "commands.h"

namespace trireme::tools {
namespace {

constexpr Seconds kPatience{5};

constexpr Seconds kForMember{2};

/// The servers of the one job that runs, or of the one that was named.
std::vector<ps::Found> servers_of(const std::string& job) {
  std::vector<ps::Found> servers;
  std::set<std::string> jobs;
  for (const ps::Found& server : ps::find_servers()) {
    jobs.insert(server.job);
    if (job.empty() || server.job == job) servers.push_back(server);
  }
  if (jobs.empty()) fail<InvalidArgument>("no job with parameter servers runs on this machine for this user");
  if (servers.empty()) fail<InvalidArgument>("there is no job '{}'; running: {}", job, fmt::join(jobs, ", "));
  if (job.empty() && jobs.size() > 1)
    fail<InvalidArgument>("several jobs have parameter servers on this machine; say which with --job: {}",
                          fmt::join(jobs, ", "));
  return servers;
}

int tell(const std::string& job, const std::string& words) {
  for (const ps::Found& server : servers_of(job)) fmt::print("{}\n", ps::control(server, words, kPatience));
  return 0;
}

/// To the one job on this machine whose crew may change, or to the one that was named.
int wish(const std::string& job, const std::string& words) {
  std::set<std::string> jobs;
  for (const cluster::Answered& crew : cluster::order(job, "crew", kPatience)) jobs.insert(crew.job);
  if (jobs.empty())
    fail<InvalidArgument>(
        "no job{} whose workers may come and go was started on this machine by this user: say this on the host of its "
        "launcher or coordinator; the job needs --workers LEAST:MOST, or --on-failure continue or replace",
        job.empty() ? "" : fmt::format(" '{}'", job));
  if (jobs.size() > 1)
    fail<InvalidArgument>("several jobs run on this machine; say which with --job: {}", fmt::join(jobs, ", "));
  for (const cluster::Answered& answer : cluster::order(*jobs.begin(), words, kPatience)) {
    if (!answer.obeyed.done) throw InvalidArgument(answer.obeyed.text);
    fmt::print("{}\n", answer.obeyed.text);
    return 0;
  }
  fail<PeerLost>("job {} is gone", *jobs.begin());
}

/// Of all jobs, or of the one that was named.
int show(const std::string& job) {
  size_t shown = 0;
  for (const cluster::Answered& crew : cluster::order(job, "crew", kForMember)) {
    fmt::print("{}\n", crew.obeyed.text);
    shown++;
  }
  const cluster::Status status = cluster::ask_for_status(kForMember);
  std::set<std::string> jobs;
  for (const cluster::MemberMetrics& member : status.members) {
    jobs.insert(member.job);
    if (!job.empty() && member.job != job) continue;
    fmt::print("{}\n", cluster::line_of(member));
    shown++;
  }
  for (int process : status.silent)
    fmt::print(stderr, "process {} has not answered within {:g} s: it is stopped, or of another version\n", process,
               kForMember.count());
  if (shown > 0) return 0;
  if (!jobs.empty()) fail<InvalidArgument>("there is no job '{}'; running: {}", job, fmt::join(jobs, ", "));
  fail<InvalidArgument>("no job runs on this machine for this user");
}

}  // namespace

Run add_ctl(CLI::App& app, const Invocation& /*invocation*/) {
  struct Settings {
    std::string job;
    int worker = 0, count = 0;
    double milliseconds = 0;
    int model = -1;
  };
  auto s = std::make_shared<Settings>();
  CLI::App* ctl =
      app.add_subcommand("ctl",
                         "Look at running jobs on this machine, change how many workers they have, and talk to "
                         "their parameter servers");
  ctl->require_subcommand(1);
  CLI::App* status = ctl->add_subcommand(
      "status",
      "For all jobs, a JSON object a line: the crew where it may change (who is in it, how many are wanted, who waits, "
      "who was lost and why), and what every rank and server has counted (docs/metrics.md)");
  CLI::App* scale =
      ctl->add_subcommand("scale", "Change how many workers a job has, within the LEAST:MOST that it was started with");
  CLI::App* drain = ctl->add_subcommand(
      "drain", "Let one worker go: it finishes its step and leaves, and one worker less is wanted from then on");
  for (CLI::App* command : {scale, drain})
    command->add_option("--job", s->job, "The job, where several run; `trireme ctl status` names them");
  scale->add_option("N", s->count, "Workers")->required();
  drain->add_option("WORKER", s->worker, "Its number, as `trireme ctl status` shows it")->required();
  scale->footer(
      "On the host where the job was started, or where its coordinator runs. Workers that are too many leave after a "
      "step, the last to come first.\n"
      "Example:\n  trireme ctl scale 3");
  CLI::App* servers = ctl->add_subcommand(
      "servers", "Who keeps which part of the parameters, where servers have replicas, and how far the backups are");
  servers->add_option("--job", s->job, "The job, where several run; `trireme ctl status` names them");
  CLI::App* delay = ctl->add_subcommand("delay", "Delay the updates of one worker: to see what the mode does about it");
  status->add_option("--job", s->job, "This job alone");
  delay->add_option("--job", s->job, "The job, where several run; `trireme ctl status` names them");
  delay->add_option("WORKER", s->worker, "Its number, from 0")->required();
  delay->add_option("MS", s->milliseconds, "Milliseconds; 0 ends the delay")->required();
  delay
      ->add_option("--model", s->model,
                   "In this model alone, where the program trains several; `trireme ctl status` names them")
      ->check(CLI::NonNegativeNumber);
  delay->footer("Example:\n  trireme ctl delay 1 50      # updates of worker 1 are applied 50 ms after they arrive");
  return [s, status, scale, drain, servers] {
    if (status->parsed()) return show(s->job);
    if (servers->parsed()) return tell(s->job, "servers");
    if (scale->parsed()) return wish(s->job, fmt::format("scale {}", s->count));
    if (drain->parsed()) return wish(s->job, fmt::format("drain {}", s->worker));
    const std::string model = s->model < 0 ? "" : fmt::format(" {}", s->model);
    return tell(s->job, fmt::format("delay {} {}{}", s->worker, s->milliseconds, model));
  };
}

}  // namespace trireme::tools
