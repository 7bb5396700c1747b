#pragma once
// What a launcher counts of the processes that it starts.
#include <trireme/metrics/metrics.h>

namespace trireme::cluster {

struct LauncherMetrics {
  explicit LauncherMetrics(metrics::Registry& registry)
      : started(&registry, {"started", "processes", "Ranks, servers or agents that were started"}),
        ended(&registry, {"ended", "processes", "That have ended, well or badly"}),
        deaths(&registry, {"deaths", "processes", "That have ended with an error or by a signal"}),
        restarts(&registry, {"restarts", "processes", "That were started in the place of one that has died"}) {}

  metrics::Counter started, ended, deaths, restarts;
};

}  // namespace trireme::cluster
