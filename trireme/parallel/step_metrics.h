#pragma once
// What a rank counts of its steps. Written by the thread that calls step(). Without torch.
#include <cmath>

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
        computing_seconds(&registry, {"computing_seconds", "seconds",
                                      "Of an update: this rank's passes, without what is exchanged beside them and "
                                      "what it waits for"}),
        share(&registry, {"share", "samples", "Of a full step, that are this rank's; null: even ones"}),
        share_changes(&registry, {"share_changes", "changes", "Of how samples are divided, by measured speed"}),
        waited_part(&registry, {"waited_part", "part",
                                "Of a step's time, in which this rank waited for the slowest one, with --balance; "
                                "null: not measured yet"}),
        crew(&registry, {"crew", "workers", "That train a model with this rank"}),
        crew_epoch(&registry, {"crew_epoch", "changes", "Of the crew, before this one"}),
        crew_since(&registry,
                   {"crew_since", "seconds",
                    "When the first step of this crew was made, on the machine's steady clock; null: not yet, "
                    "or a crew that does not change"}),
        spans(&registry),
        timed(registry.timed()) {
    crew_since.set(NAN);
    share.set(NAN);
    waited_part.set(NAN);
  }

  /// There is another crew from now on.
  void enter_crew(int size, uint64_t epoch) {
    crew.set(size);
    crew_epoch.set(static_cast<double>(epoch));
    crew_since.set(NAN);
  }
  /// A step of it was made.
  void note_step() {
    if (std::isnan(crew_since.value())) crew_since.set(Seconds(Clock::now().time_since_epoch()).count());
  }

  metrics::Counter updates, skipped, ahead, taken_back, micro_batches;
  metrics::Histogram forward_seconds, backward_seconds, exchange_seconds, computing_seconds;
  metrics::Gauge share;
  metrics::Counter share_changes;
  metrics::Gauge waited_part;
  metrics::Gauge crew, crew_epoch, crew_since;
  metrics::Spans spans;
  const bool timed;
};

}  // namespace trireme
