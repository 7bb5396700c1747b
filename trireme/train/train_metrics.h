#pragma once
// What a run counts, and how far it is: what a progress line shows. Times are of training alone, without evaluation.
// Written by the thread that trains. Without torch.
#include <trireme/metrics/metrics.h>

namespace trireme::train {

struct TrainMetrics {
  explicit TrainMetrics(metrics::Registry& registry)
      : samples(&registry, {"samples", "samples", "That this rank has trained with"}),
        epoch(&registry, {"epoch", "epochs", "That is under way, from 1"}),
        epochs(&registry, {"epochs", "epochs", "Of the whole run"}),
        epoch_step(&registry, {"epoch_step", "steps", "Of this epoch that are done"}),
        epoch_steps(&registry, {"epoch_steps", "steps", "That an epoch has"}),
        loss(&registry, {"loss", "loss", "Mean of the epoch so far"}),
        samples_per_second(&registry, {"samples_per_second", "samples/s", "Of all workers, in this epoch"}),
        seconds_left(&registry, {"seconds_left", "seconds", "Of the whole run, estimated"}) {}

  metrics::Counter samples;
  metrics::Gauge epoch, epochs, epoch_step, epoch_steps, loss, samples_per_second, seconds_left;
};

}  // namespace trireme::train
