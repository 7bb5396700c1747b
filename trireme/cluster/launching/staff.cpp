#include "staff.h"

#include <fmt/format.h>

#include <algorithm>
#include <csignal>
#include <utility>

#include <trireme/base/process.h>

namespace trireme::cluster {
namespace {

constexpr Seconds kLastWords{2};  // for one that was given up, and runs, to end by itself

}  // namespace

void Staff::look(CrewView now) {
  crew_ = std::move(now);
  roster_.learn_numbers();
  if (crew_.target != target_) {  // somebody wants another number, and means it
    target_ = crew_.target;
    unreplaced_ = 0;
    if (back_off_.given_up()) back_off_ = {};
  }
  if (crew_.more != more_) {
    unreplaced_ -= crew_.more - std::exchange(more_, crew_.more);
    if (back_off_.given_up()) back_off_ = {};
  }
  for (Child& child : roster_.all()) {
    if (!in_crew(child)) continue;
    child.rowed = true;
    if (options_.show == Show::first && child.number == crew_.ranks.front())
      child.show();  // who was shown once stays so: its last lines count
  }
}

bool Staff::in_crew(const Child& child) const {
  return !child.is_server && std::find(crew_.ranks.begin(), crew_.ranks.end(), child.number) != crew_.ranks.end();
}

bool Staff::crew_ended() const {
  return std::none_of(roster_.all().begin(), roster_.all().end(),
                      [&](const Child& child) { return !child.status && in_crew(child); });
}

void Staff::ended(const Child& child) {
  const bool well = *child.status == 0;
  if (well && in_crew(child)) return close();  // it was not sent away: the work is done
  if (well && options_.crew) unreplaced_++;    // here is only a part of the job: what is wanted in all is not known
  const bool missing = roster_.living() < wanted();
  if (!well || missing) back_off_ = after_death(back_off_, Clock::now(), child.began, child.slate.updates() > 0);
  if (child.exit_code() == kCannotJoinExit) back_off_.early = kMostEarlyDeaths;  // others would find the same
  if (well) return;
  if (options_.elasticity.on_failure != OnFailure::replace) unreplaced_++;
  say_loss(child);
}

int Staff::wanted() const { return places(options_.elasticity, target_, unreplaced_); }

bool Staff::replaces() const {
  return options_.elasticity.on_failure == OnFailure::replace && !closed_ && !back_off_.given_up();
}

void Staff::say_loss(const Child& child) const {
  if (!options_.say || closed_) return;
  std::string text = fmt::format("{} (process {}) was lost: {}", child.name, child.pid, child.how_it_ended());
  const NextStart next = next_start(Clock::now(), roster_.living(), wanted(), back_off_);
  if (back_off_.given_up()) {
    if (child.exit_code() == kCannotJoinExit)
      text = fmt::format("{} (process {}) does not fit the job: no more are started", child.name, child.pid);
    else
      text += fmt::format(". {} in a row have died within {:g} s of their start: no more are started", back_off_.early,
                          kEarly.count());
    for (const std::string& line : child.lines.last) text += fmt::format("\n  [{}] {}", child.number, line);
  } else if (next.look_again) {
    text += fmt::format(". Another one starts in {:g} s", kFirstBackOff.count() * (1 << (back_off_.early - 1)));
  } else if (next.start > 0) {
    text += ". Another one starts in its place";
  }
  options_.say(text);
}

/// A process that was given up holds memory, cores and locks that the others need, and keeps another one from being
/// started in its place. One that runs may be at its last words.
std::optional<Clock::time_point> Staff::cast_off() {
  std::optional<Clock::time_point> next;
  const Clock::time_point now = Clock::now();
  for (Child& child : roster_.all()) {
    const bool lost = std::find(crew_.lost.begin(), crew_.lost.end(), child.number) != crew_.lost.end();
    if (!lost || child.is_server || child.status || child.cast_off) continue;
    if (!child.given_up) child.given_up = now;
    const Clock::time_point latest = *child.given_up + std::chrono::duration_cast<Clock::duration>(kLastWords);
    const std::string state = process_state(child.pid);
    if (state == "ended") continue;
    child.cast_off = now >= latest || state.starts_with("stopped");
    if (child.cast_off)
      kill(-child.pid, SIGKILL);
    else
      next = next ? std::min(*next, latest) : latest;
  }
  return next;
}

std::optional<Clock::time_point> Staff::tend() {
  const auto look_again = cast_off();
  if (closed_ || !crew_.complete) return look_again;
  const NextStart next = next_start(Clock::now(), roster_.living(), wanted(), back_off_);
  for (int i = 0; i < next.start; i++) {
    roster_.start_newcomer(next_number_());
    count_.started.add();
    count_.restarts.add();
  }
  return next.look_again && look_again ? std::min(*next.look_again, *look_again)
         : look_again                  ? look_again
                                       : next.look_again;
}

bool Staff::hopeless() const {
  return !closed_ && back_off_.given_up() && roster_.living() < options_.elasticity.least;
}

}  // namespace trireme::cluster
