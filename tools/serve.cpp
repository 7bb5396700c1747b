// `trireme serve`: a parameter server. Launchers start it; people can too.
#include <memory>

#include <trireme/base/error.h>
#include <trireme/ps/server.h>

#include "commands.h"
#include "duration_flag.h"

namespace trireme::tools {

Run add_serve(CLI::App& app, const Invocation& /*invocation*/) {
  struct Settings {
    double timeout = 60, heartbeat_limit = 3;
  };
  auto s = std::make_shared<Settings>();
  CLI::App* command = app.add_subcommand(
      "serve", "Be a parameter server of the job that the environment names; ends when all workers have left");
  command->add_option("--timeout", s->timeout, "How long to wait for the first worker: 60 (seconds), 90s, 10m")
      ->transform(duration_flag())
      ->capture_default_str();
  command
      ->add_option("--heartbeat-limit", s->heartbeat_limit,
                   "Several hosts: seconds of silence after which a host counts as dead")
      ->capture_default_str();
  command->footer(
      "`trireme train --servers N` and `trireme launch --servers N` start servers by themselves. By hand, or in a "
      "cluster's own launcher:\n"
      "  TRIREME_ROLE=server TRIREME_SERVER=0 TRIREME_SERVERS=1 TRIREME_SIZE=2 TRIREME_JOB=mine trireme serve\n"
      "TRIREME_REPLICAS=1, for servers and workers, has each part on two servers of one machine. "
      "TRIREME_SIZE is the number of workers; with several hosts also TRIREME_COORDINATOR and TRIREME_TOKEN. ps-lite's "
      "DMLC_ROLE=server is understood too.");
  return [s] {
    const cluster::Place place = cluster::place_here();
    if (place.role != "server")
      fail<InvalidArgument>(
          "nothing says which job to serve. `trireme train --servers 1` starts servers by itself; `trireme serve "
          "--help` says which variables to set");
    if (!(s->timeout > 0)) fail<InvalidArgument>("--timeout must be more than 0 seconds, not {}", s->timeout);
    ps::serve(place, Seconds(s->timeout), Seconds(s->heartbeat_limit));
    return 0;
  };
}

}  // namespace trireme::tools
