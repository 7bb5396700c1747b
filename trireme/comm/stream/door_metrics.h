#pragma once
// What is counted while a group's ranks meet.
#include <trireme/metrics/metrics.h>

namespace trireme::comm::stream {

struct DoorMetrics {
  explicit DoorMetrics(metrics::Registry* registry)
      : strangers(registry,
                  {"strangers", "connections", "Turned away while ranks met: not of this job, or not what they said"}) {
  }
  metrics::Counter strangers;
};

}  // namespace trireme::comm::stream
