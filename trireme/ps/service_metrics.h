#pragma once
// What a service counts, for one model. Written by the service's thread, or whoever has its turn.
#include <string>
#include <vector>

#include <trireme/metrics/metrics.h>

namespace trireme::ps {

struct ServiceMetrics {
  /// `label` is the model's. Without a registry nobody sees them.
  ServiceMetrics(metrics::Registry* registry, const std::string& label)
      : pushes(registry, {"pushes", "requests", "Gradients of chunks that workers have pushed"}, label),
        pulls(registry, {"pulls", "requests", "Answers that brought parameters, or said that they are unchanged"},
              label),
        pushed_bytes(registry, {"pushed_bytes", "bytes", "Of gradients and sparse rows that workers have pushed"},
                     label),
        pulled_bytes(registry,
                     {"pulled_bytes", "bytes",
                      "Of parameters and sparse rows that went to workers; none where they "
                      "see the server's memory"},
                     label),
        updates(registry, {"updates", "updates", "Of chunks"}, label),
        held(registry, {"held", "times", "A gradient had to wait for those of others, for its turn or for a delay"},
             label),
        begins_held(registry, {"begins_held", "times", "A worker had to wait before it could begin a step"}, label),
        dropped(registry, {"dropped", "gradients", "Left out, because the update lock was taken or not tried for"},
                label),
        repeated(registry, {"repeated", "requests", "That came again, and were not carried out again"}, label),
        refused(registry, {"refused", "requests", "That were wrong, or that a lost worker made impossible"}, label),
        keys(registry, {"keys", "keys", "In sparse pushes and pulls"}, label),
        rows(registry, {"rows", "rows", "In the sparse tables now"}, label),
        staleness(registry,
                  {"staleness", "updates",
                   "Of a chunk between its worker's pull and the gradient, for each that was "
                   "applied by itself"},
                  label, metrics::kOne),
        age(registry,
            {"age", "steps",
             "That an applied gradient was behind the furthest worker; server 0 alone, which keeps "
             "the clocks"},
            label, metrics::kOne) {}

  /// One for each worker.
  void add_clocks(metrics::Registry* registry, const std::string& label, size_t workers) {
    for (size_t worker = clocks.size(); worker < workers; worker++)
      clocks.emplace_back(registry,
                          metrics::Description{"clock", "steps",
                                               "That a worker is at, or waits for; null: "
                                               "nobody waits for it"},
                          label + ", worker " + std::to_string(worker));
  }

  metrics::Counter pushes, pulls, pushed_bytes, pulled_bytes, updates, held, begins_held, dropped, repeated, refused,
      keys;
  metrics::Gauge rows;
  metrics::Histogram staleness, age;
  std::vector<metrics::Gauge> clocks;
};

}  // namespace trireme::ps
