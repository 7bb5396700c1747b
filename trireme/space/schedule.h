#pragma once
// Learning-rate schedules: pure functions of the step.
#include <cstdint>
#include <string>
#include <vector>

namespace trireme::space {

enum class RateSchedule : uint8_t { constant, step, cosine };

struct ScheduleOptions {
  RateSchedule kind = RateSchedule::constant;
  int64_t warmup = 0;     // steps of linear rise from lr/warmup to lr, before the schedule proper
  int64_t total = 0;      // steps of the whole run; cosine needs it
  int64_t step_size = 0;  // step: multiply by gamma every this many steps
  double gamma = 0.1;     // step
  double floor = 0;       // cosine: where it ends, as a fraction of lr
};

/// The rate of step `step` (from 0) for base rate `lr`.
double rate_at(const ScheduleOptions& options, double lr, int64_t step);

RateSchedule schedule_named(const std::string& name);
std::vector<std::string> schedule_names();

}  // namespace trireme::space
