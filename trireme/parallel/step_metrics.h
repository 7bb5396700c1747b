#pragma once
// What a rank counts of its steps. Written by the thread that calls step(). Without torch.
#include <trireme/metrics/metrics.h>

namespace trireme {

struct StepMetrics {
  explicit StepMetrics(metrics::Registry& registry)
      : updates(&registry, {"updates", "updates", "Of models that this rank took part in"}),
        skipped(&registry, {"skipped_updates", "updates", "Left out because of a NaN, with OnNan::skip"}),
        ahead(&registry, {"updates_ahead", "updates", "Of a pipeline, begun before the norm of all stages was known"}),
        taken_back(&registry, {"updates_taken_back", "updates",
                               "Of those, the ones that were clipped or left out: made again as they should be"}),
        micro_batches(&registry, {"micro_batches", "micro-batches", "Forward and backward passes"}),
        forward_seconds(&registry, {"forward_seconds", "seconds",
                                    "From the call of step() to its loss, with the wait for leave to begin"}),
        backward_seconds(&registry, {"backward_seconds", "seconds",
                                     "Backward passes, with what is exchanged beside them and what the step before has "
                                     "left on its way"}),
        exchange_seconds(&registry, {"exchange_seconds", "seconds",
                                     "From the end of an update's last backward pass to its parameters: reducing, "
                                     "updating and waiting"}),
        spans(&registry),
        timed(registry.timed()) {}

  metrics::Counter updates, skipped, ahead, taken_back, micro_batches;
  metrics::Histogram forward_seconds, backward_seconds, exchange_seconds;
  metrics::Spans spans;
  const bool timed;
};

}  // namespace trireme
