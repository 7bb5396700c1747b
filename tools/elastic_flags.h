#pragma once
// Flags of jobs whose workers may die and come: how many there may be, and what a death means.
#include <CLI/CLI.hpp>

#include <optional>
#include <string>

#include <trireme/cluster/launching/staffing.h>

namespace trireme::tools {

struct ElasticFlags {
  std::string on_failure;  // "": stop; replace where there is a range of workers
  int spares = 0;
  std::optional<double> rejoin_timeout;  // seconds; none: 60
};

/// For add_option(…)->check(): "4" or "2:8".
CLI::Validator workers_flag();

/// `word` is what the command calls its workers.
void add_elastic_flags(CLI::App& app, ElasticFlags& flags, const std::string& word);

/// Whether the job goes on when a worker dies.
bool asks_for_elasticity(const ElasticFlags& flags, const std::string& workers);

/// What the flags mean together, for `first` workers to begin with. `flag`: --workers or --ranks. Throws
/// InvalidArgument for flags that have no effect.
cluster::Elasticity elasticity_of(const ElasticFlags& flags, const cluster::Workers& workers, int first,
                                  const std::string& flag);

/// Throws InvalidArgument: newcomers of hosts are spares where they are too many, and nobody starts others.
void refuse_spares_on_hosts(const cluster::Elasticity& elasticity);

}  // namespace trireme::tools
