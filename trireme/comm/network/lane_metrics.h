#pragma once
// What is counted of the messages between machines. A group has a label: "lane" is a rank's way to its partners, "all"
// the group of all ranks.
#include <string>

#include <trireme/metrics/metrics.h>

namespace trireme::comm::network {

/// Of a wire, under its lock.
struct WireMetrics {
  WireMetrics(metrics::Registry* registry, const std::string& label)
      : sent_bytes(registry, {"sent_bytes", "bytes", "Handed to the engine, for ranks of other machines"}, label),
        received_bytes(registry, {"received_bytes", "bytes", "Asked of the engine, from ranks of other machines"},
                       label) {}
  metrics::Counter sent_bytes, received_bytes;
};

/// Of the collectives of a communicator, under its lock.
struct CollectiveMetrics {
  CollectiveMetrics(metrics::Registry* registry, const std::string& label)
      : bytes(registry, {"collective_bytes", "bytes", "Of the callers' data in collectives between machines"}, label),
        busy_seconds(
            registry,
            {"collective_seconds", "seconds", "In which at least one collective between machines was under way"},
            label) {}
  metrics::Counter bytes, busy_seconds;
};

}  // namespace trireme::comm::network
