#include <algorithm>
#include <charconv>

#include <trireme/base/error.h>
#include <trireme/base/nearest.h>
#include <trireme/cluster/launching/staffing.h>

namespace trireme::cluster {
namespace {

int workers_in(std::string_view part, const std::string& text) {
  int count = 0;
  const auto [stop, error] = std::from_chars(part.data(), part.data() + part.size(), count);
  if (error != std::errc{} || stop != part.data() + part.size() || count < 0)
    fail<InvalidArgument>("'{}' is neither a whole number, such as 4, nor a range of them, such as 2:8", text);
  return count;
}

}  // namespace

OnFailure on_failure_named(const std::string& name) {
  if (name == "stop") return OnFailure::stop;
  if (name == "continue") return OnFailure::go_on;
  if (name == "replace") return OnFailure::replace;
  fail<InvalidArgument>("unknown --on-failure '{}'{}: stop, continue or replace", name,
                        did_you_mean(name, {"stop", "continue", "replace"}));
}

Workers workers_named(const std::string& text) {
  const size_t colon = text.find(':');
  if (colon == std::string::npos) {
    const int count = workers_in(text, text);
    return {count, count, false};
  }
  const int least = workers_in(std::string_view(text).substr(0, colon), text);
  const int most = workers_in(std::string_view(text).substr(colon + 1), text);
  if (least < 1)
    fail<InvalidArgument>("'{}': a job needs one worker at least to go on; did you mean 1:{}?", text,
                          std::max(1, most));
  if (least > most)
    fail<InvalidArgument>("'{}': the least comes first, then the most; did you mean {}:{}?", text, most, least);
  return {least, most, true};
}

void check_elasticity(const Elasticity& e, int ranks) {
  if (!e.elastic()) {
    if (e.spares > 0)
      fail<InvalidArgument>("{} spares, but the job ends when a worker does: nobody would need them", e.spares);
    return;
  }
  if (e.least < 1 || e.least > ranks || ranks > e.most || e.most > kMostWorkers)
    fail<InvalidArgument>(
        "{} workers to begin with, {} at least and {} at most: a machine has 1 to {} of them, and the "
        "first ones are within the limits",
        ranks, e.least, e.most, kMostWorkers);
  if (e.spares < 0 || e.most + e.spares > kMostWorkers)
    fail<InvalidArgument>("{} workers and {} spares: a machine has {} of both at most", e.most, e.spares, kMostWorkers);
  if (!(e.rejoin_timeout >= Seconds(0) && e.rejoin_timeout <= Seconds(1e8)))
    fail<InvalidArgument>("the time for others to come must be 0 to 1e8 seconds, not {:g}", e.rejoin_timeout.count());
}

int first_crew(int least, int most, int cores) { return std::min(most, std::max(least, cores)); }

int places(const Elasticity& elasticity, int target, int unreplaced) {
  return std::max(0, target + elasticity.spares - unreplaced);
}

BackOff after_death(const BackOff& before, Clock::time_point now, Clock::time_point began, bool rowed) {
  if (rowed || now - began >= kEarly) return {0, now};
  const int early = before.early + 1;
  const Seconds wait = kFirstBackOff * static_cast<double>(1 << std::min(early - 1, kMostEarlyDeaths));
  return {early, now + std::chrono::duration_cast<Clock::duration>(wait)};
}

NextStart next_start(Clock::time_point now, int living, int places, const BackOff& back_off) {
  if (living >= places || back_off.given_up()) return {};
  if (now < back_off.not_before) return {0, back_off.not_before};
  return {places - living, std::nullopt};
}

}  // namespace trireme::cluster
