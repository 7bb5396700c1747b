#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <sstream>

#include <trireme/cluster/coordination/control.h>

namespace trireme::cluster {
namespace {

/// "1 worker is wanted from now on"
std::string wanted(int workers) {
  return fmt::format("{} {} wanted from now on", workers, workers == 1 ? "worker is" : "workers are");
}

Obeyed scale(Desk& desk, int workers) {
  if (const std::string refusal = desk.set_target(workers); !refusal.empty()) return {false, refusal};
  desk.call_for_workers();
  const CrewSnapshot crew = desk.snapshot().crew;
  return {true, fmt::format("{}, {} in the crew now", wanted(workers), crew.ranks.size())};
}

/// One that goes is one less to be wanted; otherwise another one would come in its place.
Obeyed drain(Desk& desk, int rank) {
  const CrewSnapshot before = desk.snapshot().crew;
  const bool rows = std::find(before.ranks.begin(), before.ranks.end(), rank) != before.ranks.end();
  const bool goes = std::find(before.leaving.begin(), before.leaving.end(), rank) != before.leaving.end();
  if (goes) return {true, fmt::format("rank {} is on its way out", rank)};
  if (before.elastic && rows && before.target <= before.least)
    return {false, fmt::format("the job needs at least {}, and no more are wanted now: first `trireme ctl scale {}`",
                               before.least, before.least + 1)};
  if (const std::string refusal = desk.drain(rank); !refusal.empty()) return {false, refusal};
  if (rows) desk.set_target(before.target - 1);
  return {true, fmt::format("rank {} goes after its step{}", rank, rows ? "; " + wanted(before.target - 1) : "")};
}

}  // namespace

Obeyed obey(Desk& desk, const std::string& words, const std::string& job) {
  std::istringstream stream(words);
  std::string verb;
  int number = 0;
  stream >> verb;
  if (verb == "crew") return {true, line_of(desk.snapshot().crew, job)};
  if ((verb != "scale" && verb != "drain") || !(stream >> number))
    return {false, fmt::format("'{}' is no order that this version knows", words)};
  return verb == "scale" ? scale(desk, number) : drain(desk, number);
}

std::string line_of(const CrewSnapshot& crew, const std::string& job) {
  nlohmann::ordered_json lost = nlohmann::ordered_json::array();
  for (size_t i = 0; i < crew.lost.size(); i++)
    lost.push_back({{"rank", crew.lost[i]}, {"why", i < crew.losses.size() ? crew.losses[i] : ""}});
  const nlohmann::ordered_json line = {{"job", job},
                                       {"member", "crew"},
                                       {"epoch", crew.epoch},
                                       {"ranks", crew.ranks},
                                       {"target", crew.target},
                                       {"least", crew.least},
                                       {"most", crew.most},
                                       {"spares", crew.spares},
                                       {"preparing", crew.preparing},
                                       {"leaving", crew.leaving},
                                       {"settled", crew.settled},
                                       {"waiting", crew.waiting},
                                       {"lost", lost},
                                       {"reason", crew.reason}};
  return line.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace);
}

}  // namespace trireme::cluster
