// `trireme launch`: any program, several times, with a rank each.
#include <fmt/format.h>

#include <memory>

#include <trireme/base/error.h>
#include <trireme/base/nearest.h>
#include <trireme/base/process.h>
#include <trireme/cluster/launching/launcher.h>

#include "commands.h"
#include "elastic_flags.h"
#include "hosts.h"
#include "train_flags.h"

namespace trireme::tools {

Run add_launch(CLI::App& app, const Invocation& invocation) {
  auto options = std::make_shared<cluster::LaunchOptions>();
  auto hosts = std::make_shared<HostsFlags>();
  auto servers = std::make_shared<int>(0);
  auto replicas = std::make_shared<int>(0);
  auto ranks = std::make_shared<std::string>("1");
  auto elastic = std::make_shared<ElasticFlags>();
  auto serve_with = std::make_shared<std::string>();
  CLI::App* command = app.add_subcommand(
      "launch",
      "Start a program that uses the library once per rank, and stay with it: trireme launch -n N -- PROGRAM ARGS...");
  command
      ->add_option(
          "-n,--ranks", *ranks,
          "How many processes. LEAST:MOST, such as 2:8: the job goes on when some die, as long as LEAST are "
          "left, others are started in their place, and `trireme ctl scale` changes their number while it runs "
          "(docs/elastic.md)")
      ->capture_default_str()
      ->check(workers_flag());
  command->add_option("--threads", options->threads, "Compute threads per rank; 0: cores divided by ranks");
  command
      ->add_option(
          "--servers", *servers,
          "Parameter servers beside the ranks: `trireme serve`, which programs with --sync async and such need")
      ->capture_default_str()
      ->check(CLI::NonNegativeNumber);
  command
      ->add_option("--replicas", *replicas,
                   "Of what each server keeps, on others (0 or 1): the job goes on when a server is killed "
                   "(docs/parameter-server.md)")
      ->capture_default_str()
      ->check(CLI::NonNegativeNumber);
  command->add_option("--serve-with", *serve_with,
                      "The servers' program, if not `trireme serve`: one that calls trireme::ps::serve()");
  add_elastic_flags(*command, *elastic, "rank");
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
  return [options, hosts, servers, replicas, serve_with, ranks, elastic, command, invocation] {
    const std::vector<std::string> server_command =
        serve_with->empty() ? std::vector{invocation.program, std::string("serve")} : std::vector{*serve_with};
    options->command = command->remaining();
    if (!options->command.empty() && options->command[0].starts_with("-"))
      fail<InvalidArgument>(
          "unknown flag '{}'{}. `trireme launch --help` lists what there is", options->command[0],
          did_you_mean(options->command[0],
                       {"--ranks", "--threads", "--servers", "--replicas", "--serve-with", "--on-failure", "--spares",
                        "--rejoin-timeout", "--hosts", "--hostfile", "--remote", "--help"}));
    options->command.insert(options->command.end(), invocation.rest.begin(), invocation.rest.end());
    if (options->command.empty())
      fail<InvalidArgument>("nothing to launch. Usage: trireme launch -n N -- PROGRAM ARGS…");
    refuse_without_hosts(*command, *hosts, asks_for_elasticity(*elastic, *ranks));
    const cluster::Workers wanted = cluster::workers_named(*ranks);
    if (hosts->given() && command->count("--ranks") > 0 && !wanted.range)
      fail<InvalidArgument>("-n {} and hosts: they say how many ranks there are, as in --hosts a:2,b:2. Leave -n out",
                            *ranks);
    if (!serve_with->empty() && *servers == 0)
      fail<InvalidArgument>("--serve-with has no effect without --servers: say how many to start");
    if (*replicas > 0 && *servers == 0)
      fail<InvalidArgument>("--replicas has no effect without --servers: say how many to start, 2 at least");
    if (*servers > 0) check_replicas(*replicas, *servers, hosts->given());
    options->ranks = hosts->given() ? hosts->ranks()
                     : wanted.range ? cluster::first_crew(wanted.least, wanted.most, usable_cores())
                                    : wanted.most;
    options->elasticity = elasticity_of(*elastic, wanted, options->ranks, "--ranks");
    if (hosts->given()) refuse_spares_on_hosts(options->elasticity);
    if (options->elasticity.elastic() && *servers > 0)
      fail<InvalidArgument>("ranks cannot come and go beside parameter servers yet: leave --servers out, or {}",
                            wanted.range ? "say how many ranks there are" : "--on-failure");
    if (hosts->heartbeat_given) {
      check_heartbeat_limit(hosts->heartbeat_limit);
      options->silence = Seconds(hosts->heartbeat_limit);
    }
    if (hosts->given()) {
      cluster::HostsOptions on_hosts = hosts->options(invocation.program);
      on_hosts.command = options->command;
      on_hosts.server_command = server_command;
      on_hosts.servers = *servers;
      on_hosts.elasticity = options->elasticity;
      if (options->threads > 0) on_hosts.environment.emplace_back("OMP_NUM_THREADS", std::to_string(options->threads));
      on_hosts.say = print_error;
      const cluster::LaunchResult result = cluster::launch_on_hosts(on_hosts);
      explain_end(result, false);
      return result.exit_code;
    }
    options->server_command = server_command;
    options->say = print_error;
    options->replicas = *replicas;
    for (int server = 0; server < *servers; server++) options->servers.push_back(server);
    const cluster::LaunchResult result = cluster::launch(*options);
    explain_end(result, false);
    return result.exit_code;
  };
}

}  // namespace trireme::tools
