#pragma once
// Carries out a plan of blows on a job, and measures what each costs.
#include <functional>
#include <string>
#include <vector>

#include "chaos_plan.h"
#include "victim_job.h"

namespace trireme::tools {

struct DisturbOptions {
  int leave = 2;          // workers that are in the crew after any blow: one waits for others to come
  int full = 0;           // a blow waits for as many workers in the crew; 0: for leave + 1
  int spares = 0;         // and for as many others that answer
  Seconds patience{120};  // for a step, and for a crew that is large enough; longer is a hang
  std::function<void(const Struck&)> tell = [](const Struck&) {};  // after each blow, when its next step was seen
};

struct Disturbance {
  std::vector<Struck> struck;
  std::string trouble;  // why not all of the plan was carried out: a sentence, or ""
};

/// Blocks until the last blow's next step was seen, or the job has ended, or hangs, or somebody wants to stop.
///
/// How times are measured: each worker tells when the first step of its newest crew was made, on the clock that all
/// processes of the machine share, and the blow's time is read from the same clock right before the signal is sent. So
/// they do not depend on how often workers are asked; a crew that lasts for less than the time between two questions,
/// which is some milliseconds, is not seen. When a worker was only stopped there is no new crew, and the end of the
/// next step is known to about five milliseconds.
Disturbance disturb(VictimJob& job, const std::vector<Blow>& plan, const DisturbOptions& options);

}  // namespace trireme::tools
