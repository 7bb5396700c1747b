#include <fmt/format.h>
#include <poll.h>

#include <algorithm>
#include <chrono>
#include <utility>

#include <trireme/base/error.h>
#include <trireme/checkpoint/folder.h>

#include "restarts.h"

namespace trireme::tools {
namespace {

constexpr int kKilled = 128;  // exit codes above it are those of signals

/// Somebody was killed, or the state of the model is gone with all that were: no error that would come again.
bool died(int exit_code) { return exit_code > kKilled || exit_code == cluster::kStateLostExit; }

/// The newest checkpoint that all of the next launch can go on with, or "".
std::string newest_checkpoint(const std::string& dir) {
  try {
    return checkpoint::Folder(checkpoint::system_files(), dir).newest().entry.name;
  } catch (const InvalidArgument&) {
    return "";  // none so far
  }
}

std::vector<std::string> flags_for(const cluster::Degrees& degrees, int restarts, bool resumes) {
  std::vector<std::string> flags = {"--restarts", std::to_string(restarts)};
  if (degrees.tensor > 1 || restarts > 0) flags.insert(flags.end(), {"--tensor", std::to_string(degrees.tensor)});
  if (degrees.pipeline > 1 || restarts > 0) flags.insert(flags.end(), {"--pipeline", std::to_string(degrees.pipeline)});
  if (resumes) flags.insert(flags.end(), {"--resume", "latest"});
  return flags;
}

/// A signal ends it at once: whoever waits here has no worker that could be asked to stop.
void wait_until(Clock::time_point when) {
  const auto left = std::chrono::ceil<std::chrono::milliseconds>(when - Clock::now()).count();
  if (left > 0) poll(nullptr, 0, static_cast<int>(left));
}

}  // namespace

NextLaunch next_launch(const cluster::Elasticity& elasticity, const cluster::Degrees& before, bool fixed_stages,
                       const cluster::BackOff& deaths) {
  if (deaths.given_up())
    return {std::nullopt, fmt::format("{} launches in a row have ended soon after their start, so there is no other",
                                      cluster::kMostEarlyDeaths)};
  if (elasticity.on_failure == cluster::OnFailure::replace)
    return {before, fmt::format("All start again, as {}", before.describe())};
  const int left = before.ranks() - 1;
  const auto degrees = cluster::degrees_within(left, before, fixed_stages);
  if (!degrees || degrees->ranks() < elasticity.least)
    return {std::nullopt,
            fmt::format("{} workers are left, and there is no mesh of them with at least {}: this is the end", left,
                        elasticity.least)};
  return {degrees,
          fmt::format("{} of {} workers are left: they start again, as {}", left, before.ranks(), degrees->describe())};
}

cluster::Hosts hosts_for(cluster::Hosts hosts, int workers, int failed) {
  int slots = 0;
  for (const auto& [name, count] : hosts) slots += count;
  if (slots > workers && failed >= 0 && failed < static_cast<int>(hosts.size())) {
    hosts[static_cast<size_t>(failed)].second--;
    slots--;
  }
  for (; slots > workers; slots--) {
    const auto fewest = std::min_element(hosts.begin(), hosts.end(), [](const auto& a, const auto& b) {
      return (a.second > 0 ? a.second : cluster::kMostWorkers + 1) <
             (b.second > 0 ? b.second : cluster::kMostWorkers + 1);
    });
    fewest->second--;
  }
  std::erase_if(hosts, [](const auto& host) { return host.second == 0; });
  return hosts;
}

cluster::LaunchResult launch_again_and_again(
    const TrainSettings& settings,
    const std::function<cluster::LaunchResult(int workers, const std::vector<std::string>& flags)>& launch,
    const std::function<void(const std::string&)>& say) {
  const train::Options& o = settings.options;
  const bool fixed_stages = o.schedule.starts_with("file:");
  cluster::Degrees degrees = cluster::degrees_of(settings.workers, {.pipeline = o.pipeline, .tensor = o.tensor});
  cluster::BackOff deaths;
  std::string newest = newest_checkpoint(o.keeping.dir);
  for (int restarts = 0; true; restarts++) {
    const Clock::time_point began = Clock::now();
    const auto result = launch(degrees.ranks(), flags_for(degrees, restarts, restarts > 0 && !newest.empty()));
    if (!result.failed || result.interrupted || !died(result.exit_code)) return result;
    const std::string before = std::exchange(newest, newest_checkpoint(o.keeping.dir));
    deaths = cluster::after_death(deaths, Clock::now(), began, newest != before);
    const NextLaunch next = next_launch(settings.elasticity, degrees, fixed_stages, deaths);
    if (!next.degrees) {
      say(next.reason);
      return result;
    }
    say(fmt::format("{}. {}, {}", result.reason, next.reason,
                    newest.empty() ? "from the beginning: there is no checkpoint yet"
                                   : fmt::format("from {} of {}", newest, o.keeping.dir)));
    degrees = *next.degrees;
    wait_until(deaths.not_before);
  }
}

}  // namespace trireme::tools
