// `trireme launch`: any program, several times, with a rank each.
#include <fmt/format.h>

#include <memory>

#include <trireme/base/error.h>
#include <trireme/base/nearest.h>
#include <trireme/cluster/launching/launcher.h>

#include "commands.h"
#include "hosts.h"

namespace trireme::tools {

Run add_launch(CLI::App& app, const Invocation& invocation) {
  auto options = std::make_shared<cluster::LaunchOptions>();
  auto hosts = std::make_shared<HostsFlags>();
  auto servers = std::make_shared<int>(0);
  auto serve_with = std::make_shared<std::string>();
  CLI::App* command = app.add_subcommand(
      "launch",
      "Start a program that uses the library once per rank, and stay with it: trireme launch -n N -- PROGRAM ARGS...");
  command->add_option("-n,--ranks", options->ranks, "How many processes")->capture_default_str();
  command->add_option("--threads", options->threads, "Compute threads per rank; 0: cores divided by ranks");
  command
      ->add_option(
          "--servers", *servers,
          "Parameter servers beside the ranks: `trireme serve`, which programs with --sync async and such need")
      ->capture_default_str()
      ->check(CLI::NonNegativeNumber);
  command->add_option("--serve-with", *serve_with,
                      "The servers' program, if not `trireme serve`: one that calls trireme::ps::serve()");
  auto on_failure = std::make_shared<std::string>("stop");
  command
      ->add_option("--on-failure", *on_failure,
                   "What a rank that dies means: stop (all end) or continue (the others are left to make a new group: "
                   "World::regroup())")
      ->capture_default_str()
      ->check(CLI::IsMember({"stop", "continue"}));
  add_hosts_flags(*command, *hosts);
  command->prefix_command();
  command->footer(
      "Each rank finds TRIREME_RANK, TRIREME_SIZE and torchrun's variables (RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR, "
      "…) in its environment, so PyTorch\n"
      "programs start too. Lines are prefixed with the rank. When one rank dies the others are ended, and the first "
      "death is explained.\n"
      "Examples:\n"
      "  trireme launch -n 4 -- ./my_training --lr 0.1\n"
      "  trireme launch -n 2 --servers 1 -- ./my_worker\n"
      "  trireme launch --hosts a:2,b:2 -- /shared/my_training --lr 0.1");
  return [options, hosts, servers, serve_with, on_failure, command, invocation] {
    const std::vector<std::string> server_command =
        serve_with->empty() ? std::vector{invocation.program, std::string("serve")} : std::vector{*serve_with};
    options->command = command->remaining();
    if (!options->command.empty() && options->command[0].starts_with("-"))
      fail<InvalidArgument>(
          "unknown flag '{}'{}. `trireme launch --help` lists what there is", options->command[0],
          did_you_mean(options->command[0], {"--ranks", "--threads", "--servers", "--serve-with", "--on-failure",
                                             "--hosts", "--hostfile", "--remote", "--help"}));
    options->command.insert(options->command.end(), invocation.rest.begin(), invocation.rest.end());
    if (options->command.empty())
      fail<InvalidArgument>("nothing to launch. Usage: trireme launch -n N -- PROGRAM ARGS…");
    refuse_without_hosts(*command, *hosts);
    if (hosts->given() && command->count("--ranks") > 0)
      fail<InvalidArgument>("-n {} and hosts: they say how many ranks there are, as in --hosts a:2,b:2. Leave -n out",
                            options->ranks);
    if (!serve_with->empty() && *servers == 0)
      fail<InvalidArgument>("--serve-with has no effect without --servers: say how many to start");
    if (hosts->given() && command->count("--on-failure") > 0)
      fail<InvalidArgument>("--on-failure is for ranks of this machine: leave it out, or --hosts");
    if (*on_failure == "continue") options->on_loss = cluster::OnLoss::change_crew;
    if (hosts->given()) {
      cluster::HostsOptions on_hosts = hosts->options(invocation.program);
      on_hosts.command = options->command;
      on_hosts.server_command = server_command;
      on_hosts.servers = *servers;
      if (options->threads > 0) on_hosts.environment.emplace_back("OMP_NUM_THREADS", std::to_string(options->threads));
      on_hosts.say = print_error;
      const cluster::LaunchResult result = cluster::launch_on_hosts(on_hosts);
      explain_end(result, false);
      return result.exit_code;
    }
    options->server_command = server_command;
    options->say = print_error;
    for (int server = 0; server < *servers; server++) options->servers.push_back(server);
    const cluster::LaunchResult result = cluster::launch(*options);
    for (int rank : result.left_behind)
      print_error(fmt::format("rank {} was lost; the others went on without it", rank));
    explain_end(result, false);
    return result.exit_code;
  };
}

}  // namespace trireme::tools
