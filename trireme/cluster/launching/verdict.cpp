#include "verdict.h"

#include <fmt/format.h>

#include <algorithm>

#include "interruption.h"

namespace trireme::cluster {
namespace {

constexpr double kMoment = 0.1;  // seconds between deaths that are seen as one

/// Of two that failed by themselves: is the first one rather the cause? One error that all ranks find is told by the
/// lowest.
bool earlier(const Child& one, const Child& other) {
  const bool same = one.uncaught() == other.uncaught();
  if (!same && one.failed_at() > 0 && other.failed_at() > 0) return one.failed_at() < other.failed_at();
  return one.ended < other.ended + kMoment &&
         std::pair(one.is_server, one.number) < std::pair(other.is_server, other.number);
}

std::optional<size_t> first_of(const std::vector<Child>& children, const std::vector<size_t>& failed) {
  if (failed.empty()) return std::nullopt;
  const double first = children[failed.front()].ended;
  for (size_t index : failed) {
    const Child& child = children[index];
    if (!child.pressed && child.ended < first + kMoment && child.killed()) return index;
  }
  std::optional<size_t> best;
  for (size_t index : failed) {
    const Child& child = children[index];
    if (child.pressed || child.victim()) continue;
    if (!best || earlier(child, children[*best])) best = index;
  }
  return best ? best : failed.front();
}

/// Those who were left behind by ranks that went on to a good end without them.
bool good_end(const Ended& ended) {
  const auto well = [&](const Child& child) { return !child.is_server && *child.status == 0; };
  return ended.interrupted == 0 && ended.desk_says.empty() &&
         std::all_of(ended.failed.begin(), ended.failed.end(),
                     [&](size_t index) { return ended.children[index].dispensable; }) &&
         std::any_of(ended.children.begin(), ended.children.end(), well);
}

}  // namespace

std::optional<size_t> culprit_of(const std::vector<Child>& children, const std::vector<size_t>& failed) {
  std::vector<size_t> needed;
  std::copy_if(failed.begin(), failed.end(), std::back_inserter(needed),
               [&](size_t index) { return !children[index].dispensable; });
  const bool all_victims = std::all_of(
      needed.begin(), needed.end(), [&](size_t index) { return children[index].pressed || children[index].victim(); });
  if (!all_victims || needed.size() == failed.size()) return first_of(children, needed);
  for (auto last = failed.rbegin(); last != failed.rend(); ++last)  // whose loss was one too many
    if (children[*last].dispensable && !children[*last].victim()) return *last;
  return first_of(children, failed);
}

LaunchResult verdict(const Ended& ended, const LaunchOptions& options) {
  LaunchResult result;
  for (size_t index : ended.failed) {
    const Child& child = ended.children[index];
    if (child.dispensable) result.losses.push_back({child.name, child.how_it_ended(), child.ended});
  }
  if (good_end(ended)) return result;
  result.interrupted = ended.interrupted != 0;
  result.failed = !ended.failed.empty();
  if (result.interrupted) {
    result.exit_code = 128 + ended.interrupted;
    if (options.commands.empty() && options.first_rank == 0)
      result.lost = lost_sentence(ended.children, ended.asked_to_stop_at, options.saves, ended.at_once);
  }
  const auto index = culprit_of(ended.children, ended.failed);
  if (!ended.desk_says.empty() && !result.interrupted) {
    result.exit_code = 1;
    result.culprit = "the job";
    result.reason = ended.desk_says;
  }
  if (!index || result.interrupted) return result;
  const Child& child = ended.children[*index];
  (child.is_server ? result.failed_server : result.first_failed) = child.number;
  result.exit_code = child.victim() ? kPeerLostExit : child.exit_code();
  result.culprit = child.name;
  result.reason = fmt::format("{} (process {}) died {}: {} (after {:.1f} s)", child.name, child.pid,
                              child.dispensable ? "last" : "first", child.how_it_ended(), child.ended);
  if (!ended.desk_says.empty()) result.reason += ". " + ended.desk_says;
  result.last_lines.assign(child.lines.last.begin(), child.lines.last.end());
  return result;
}

}  // namespace trireme::cluster
