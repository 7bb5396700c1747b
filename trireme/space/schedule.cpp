#include <algorithm>
#include <array>
#include <cmath>
#include <numbers>

#include <trireme/base/error.h>
#include <trireme/base/nearest.h>
#include <trireme/space/schedule.h>

namespace trireme::space {
namespace {
constexpr std::array kSchedules = {"constant", "step", "cosine"};
}

double rate_at(const ScheduleOptions& options, double lr, int64_t step) {
  if (step < options.warmup) return lr * static_cast<double>(step + 1) / static_cast<double>(options.warmup);
  const int64_t after = step - options.warmup;
  switch (options.kind) {
    case RateSchedule::constant:
      return lr;
    case RateSchedule::step: {
      const int64_t drops = options.step_size > 0 ? after / options.step_size : 0;
      return lr * std::pow(options.gamma, static_cast<double>(drops));
    }
    case RateSchedule::cosine: {
      const double span = static_cast<double>(std::max<int64_t>(1, options.total - options.warmup));
      const double way = std::min(1.0, static_cast<double>(after) / span);
      return lr * (options.floor + (1 - options.floor) * 0.5 * (1 + std::cos(std::numbers::pi * way)));
    }
  }
  return lr;
}

std::vector<std::string> schedule_names() { return {kSchedules.begin(), kSchedules.end()}; }

RateSchedule schedule_named(const std::string& name) {
  for (size_t i = 0; i < kSchedules.size(); i++)
    if (name == kSchedules[i]) return static_cast<RateSchedule>(i);
  fail<InvalidArgument>("unknown schedule '{}'{}", name, did_you_mean(name, schedule_names()));
}

}  // namespace trireme::space
