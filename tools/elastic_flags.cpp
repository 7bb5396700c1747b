#include <fmt/format.h>

#include <trireme/base/error.h>

#include "duration_flag.h"
#include "elastic_flags.h"

namespace trireme::tools {

CLI::Validator workers_flag() {
  return CLI::Validator(
      [](const std::string& text) -> std::string {
        try {
          const cluster::Workers workers = cluster::workers_named(text);
          return workers.range && workers.most > cluster::kMostWorkers
                     ? fmt::format("'{}': a machine has 1 to {} of them", text, cluster::kMostWorkers)
                     : "";
        } catch (const InvalidArgument& error) {
          return error.what();
        }
      },
      "");
}

void add_elastic_flags(CLI::App& app, ElasticFlags& flags, const std::string& word) {
  const char* const group = "Workers that die and come";
  app.add_option("--on-failure", flags.on_failure,
                 fmt::format("What the death of a {} means. stop: all end; continue: the others go on without it; "
                             "replace: and another one is started in its place (default: stop, with LEAST:MOST "
                             "replace; docs/elastic.md)",
                             word))
      ->group(group)
      ->check([](const std::string& name) -> std::string {
        try {
          cluster::on_failure_named(name);
          return "";
        } catch (const InvalidArgument& error) {
          return error.what();
        }
      })
      ->default_str("");
  app.add_option("--spares", flags.spares,
                 fmt::format("So many more {}s that have started and wait: one of them is there at once when a {} dies",
                             word, word))
      ->group(group)
      ->check(CLI::Range(0, cluster::kMostWorkers));
  app.add_option("--rejoin-timeout", flags.rejoin_timeout,
                 fmt::format("When fewer {}s are left than LEAST: how long to wait for others: 60 (seconds), 10m; then "
                             "they save what they have, and the job ends (default: 60)",
                             word))
      ->group(group)
      ->transform(duration_flag());
}

bool asks_for_elasticity(const ElasticFlags& flags, const std::string& workers) {
  return flags.on_failure.empty() ? cluster::workers_named(workers).range : flags.on_failure != "stop";
}

cluster::Elasticity elasticity_of(const ElasticFlags& flags, const cluster::Workers& workers, int first,
                                  const std::string& flag) {
  cluster::Elasticity e;
  const std::string usual = workers.range ? "replace" : "stop";
  e.on_failure = cluster::on_failure_named(flags.on_failure.empty() ? usual : flags.on_failure);
  if (!e.elastic()) {
    if (workers.range)
      fail<InvalidArgument>("--on-failure stop, but {} {}:{} is for {} that die and come: leave one of them out", flag,
                            workers.least, workers.most, flag.substr(2));
    if (flags.spares > 0 || flags.rejoin_timeout)
      fail<InvalidArgument>(
          "{} has no effect where the death of one ends all: say {} LEAST:MOST, or --on-failure replace",
          flags.spares > 0 ? "--spares" : "--rejoin-timeout", flag);
    return e;
  }
  e.least = workers.range ? workers.least : 1;
  e.most = workers.range ? workers.most : first;
  e.spares = flags.spares;
  e.rejoin_timeout = Seconds(flags.rejoin_timeout.value_or(60));
  return e;
}

void refuse_spares_on_hosts(const cluster::Elasticity& elasticity) {
  if (elasticity.spares > 0)
    fail<InvalidArgument>(
        "--spares {} is for workers of one machine: leave it out. On hosts, workers that `trireme join` brings beyond "
        "the most that there may be are spares",
        elasticity.spares);
}

}  // namespace trireme::tools
