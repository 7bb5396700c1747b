// How a launch comes to its end: at the user's wish, after a failure, or because only those are left who wait.
#include <fmt/format.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "run.h"

namespace trireme::cluster {
namespace {

constexpr Seconds kBetweenSignals{0.7};  // from SIGTERM to SIGKILL
constexpr Seconds kAfterFailure{3};  // once they were asked to stop and one has failed, for the others to show progress
constexpr Seconds kMostAfterFailure{60};  // and in all
constexpr Seconds kForPeers{10};          // more than a rank waits for others
constexpr Seconds kForAgents{15};         // to end, once all ranks have left: one may still wait for an engine
constexpr Seconds kAgentsGoodbye{0.7};    // for agents to kill their ranks
constexpr Seconds kAfterRanks{5};         // for servers to end by themselves
constexpr Seconds kAfterCrew{1};          // the same for spares, and for those who are still getting ready
constexpr Seconds kOneWish{
    0.3};  // timeout(1) and some shells signal the process and then its group: that is one wish, not two

}  // namespace

void LaunchRun::forward_signal() {
  signalfd_siginfo info{};
  if (read(signals_.descriptor(), &info, sizeof info) != sizeof info) return;
  const auto signal = static_cast<int>(info.ssi_signo);
  if (interrupted_ != 0 && (signal == SIGHUP || seconds_since(interrupted_at_) < kOneWish.count()))
    return;  // a closed terminal is no second wish
  if (interrupted_ == 0) say(stop_sentence(signal, options_.saves));
  interrupt(signal);
}

/// From whoever started this process, who tells the user.
void LaunchRun::read_wish() {
  char words[64];
  const ssize_t got = read(options_.hangup, words, sizeof words);
  if (got < 0 && (errno == EINTR || errno == EAGAIN)) return;
  hung_up_ = got <= 0;
  const bool end =
      got > 0 && std::string_view(words, static_cast<size_t>(got)).find(kEndWord) != std::string_view::npos;
  if (interrupted_ == 0) interrupt(SIGINT);
  if (end || (hung_up_ && told_to_stop_)) interrupt(SIGINT);
  told_to_stop_ = true;
}

/// Servers are not told the first time: the ranks finish their update with them, and save.
void LaunchRun::interrupt(int signal) {
  const bool again = interrupted_ != 0;
  interrupted_at_ = Clock::now();
  interrupted_ = signal;
  if (again) return end_at_once();
  asked_to_stop_at_ = slate_now();
  progress_.emplace(roster_.all());
  if (servers_alone_ && (others_ended_ || options_.others_ended < 0)) {
    escalate();
  } else {
    tell_to_stop(signal);
  }
  if (desk_) desk_->hurry("The job was interrupted");
  if (options_.interrupted) options_.interrupted();
  if (!end_) press_after(patience());
}

/// Not those who wait or get ready in an elastic job: they have nothing to save, and their end must not disturb those
/// who have. They are ended when these have.
void LaunchRun::tell_to_stop(int signal) {
  for (const Child& child : roster_.all()) {
    if (child.status || child.is_server || (staff_ && !staff_->in_crew(child))) continue;
    if (child.input) {
      [[maybe_unused]] const auto written = write(child.input.get(), kStopWord, std::strlen(kStopWord));
      continue;
    }
    ask_to_stop(child.pid, signal);
    kill(-child.pid, SIGCONT);  // a stopped process takes its signal only when it goes on
  }
}

/// Agents kill their own ranks, which nobody else can.
void LaunchRun::end_at_once() {
  asked_ = at_once_ = true;
  bool agents = false;
  for (const Child& child : roster_.all())
    if (child.input && !child.status) agents |= write(child.input.get(), kEndWord, std::strlen(kEndWord)) > 0;
  if (!agents) roster_.signal(SIGKILL, true);
  press_after(kAgentsGoodbye);
}

/// The ranks have been told too, and end by themselves; those who do not are helped.
void LaunchRun::end_for_failure_elsewhere() {
  failed_elsewhere_ = true;
  if (!end_ || (progress_ && !asked_)) press_after(options_.grace);
}

/// An elastic job cannot go on. Its ranks hear so from the desk, and have time to save what they have, while they get
/// on with it.
void LaunchRun::wind_down() {
  if (std::exchange(winding_down_, true)) return;
  staff_->close();
  if (!failed_at_) failed_at_ = Clock::now();
  if (!progress_) progress_.emplace(roster_.all());
  if (!end_) press_after(kAfterFailure);
}

/// The crew has come to its end: spares are told by the desk, and those who are still getting ready need not.
void LaunchRun::end_idle_newcomers() {
  if (std::exchange(crew_ended_, true)) return;
  staff_->close();
  if (roster_.living() > 0 && !asked_)
    press_after(end_ ? std::min(kAfterCrew, Seconds(*end_ - Clock::now())) : kAfterCrew);
}

/// The work is done, and agents hear so. The way to a host that was cut off (ssh) may not end by itself.
void LaunchRun::end_deaf_agents() {
  job_over_ = true;
  if (!end_) press_after(kForAgents);
}

/// Whether ranks that were asked to stop get on with it: then they have more time.
bool LaunchRun::goes_on() {
  if (!progress_ || asked_ || failed_elsewhere_ || crew_ended_ || roster_.ranks_ended()) return false;
  const bool in_time = !failed_at_ || seconds_since(*failed_at_) < kMostAfterFailure.count();
  if (in_time && (options_.alive ? options_.alive() : progress_->made())) {
    press_after(patience());
    return true;
  }
  if (!failed_at_)
    say(fmt::format("{} made no progress for {:.0f} s after being asked to stop: ended now", unended(roster_.all()),
                    patience().count()));
  return false;
}

/// Ranks on other machines are waited for by those here, who do nothing meanwhile.
Seconds LaunchRun::patience() const {
  if (failed_at_) return kAfterFailure;
  Seconds result = options_.patience;
  if (options_.size > options_.ranks)
    for (const Child& child : roster_.all()) result = std::max(result, Seconds(child.slate.patience()) + kForPeers);
  return result;
}

// ---- pressing ----

void LaunchRun::press_after(Seconds time) { end_ = Clock::now() + std::chrono::duration_cast<Clock::duration>(time); }

void LaunchRun::press_for_failure() {
  const bool first = !failed_at_;
  if (first) failed_at_ = Clock::now();
  if (!end_)
    press_after(options_.grace);
  else if (progress_ && first)
    press_after(kAfterFailure);
}

/// The servers see by themselves that all ranks have left. After a failure they have had their time already; ranks
/// elsewhere may still need them.
void LaunchRun::leave_servers_alone() {
  servers_alone_ = true;
  if (options_.ranks_ended) options_.ranks_ended();
  if (roster_.all_ended() || (end_ && interrupted_ == 0)) return;
  asked_ = false;
  if (options_.others_ended < 0 || others_ended_)
    press_after(kAfterRanks);
  else
    end_.reset();
}

void LaunchRun::end_servers_soon() {
  others_ended_ = true;
  if (!end_) press_after(kAfterRanks);
}

/// Ranks that were interrupted have their servers to the end.
void LaunchRun::escalate() {
  const bool spares_servers = (interrupted_ != 0 || crew_ended_) && !failed_at_ && !servers_alone_;
  roster_.signal(std::exchange(asked_, true) ? SIGKILL : SIGTERM, !spares_servers);
  press_after(kBetweenSignals);
}

}  // namespace trireme::cluster
