#include "run.h"

#include <fmt/format.h>
#include <poll.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>

#include <trireme/cluster/coordination/coordinator.h>

#include "verdict.h"

namespace trireme::cluster {
namespace {

constexpr Seconds kTooEarly{1};  // a server that is killed so soon after its start is not replaced
constexpr Seconds kAfterAll{1};  // for a stranger that still holds somebody's output open

}  // namespace

LaunchRun::LaunchRun(LaunchOptions options) : options_(std::move(options)), roster_(options_, signals_) {}

LaunchResult LaunchRun::run() {
  if (whole_job_here()) open_desk();
  if (options_.elasticity.elastic() && options_.commands.empty() && (desk_ || options_.crew))
    staff_.emplace(options_, roster_, count_, [this] { return desk_ ? desk_->next_rank() : -1; });
  roster_.start_all();
  count_.started.add(static_cast<double>(roster_.all().size()));
  if (options_.commands.empty() && options_.failed < 0) open_status_door();
  tend();
  while (roster_.anything_open() || look_again_ || stands_by()) {
    if (roster_.all_ended() && !look_again_ && !stands_by() && !std::exchange(drains_, true))
      press_after(end_ ? std::min(kAfterAll, Seconds(*end_ - Clock::now())) : kAfterAll);
    wait_for_events();
    tend();
    if (!servers_alone_ && roster_.ranks_ended() && !look_again_ && !stands_by()) leave_servers_alone();
    if (end_ && Clock::now() >= *end_) {
      if (drains_) break;
      if (!goes_on()) escalate();
    }
  }
  return result();
}

/// Otherwise there is a coordinator, whom agents have told the ranks of.
bool LaunchRun::whole_job_here() const {
  return options_.commands.empty() && options_.failed < 0 && options_.size == options_.ranks &&
         std::none_of(options_.environment.begin(), options_.environment.end(),
                      [](const auto& entry) { return entry.first == "TRIREME_COORDINATOR"; }) &&
         getenv("TRIREME_COORDINATOR") == nullptr;
}

void LaunchRun::open_desk() {
  desk_.emplace(options_.job, options_.ranks, options_.elasticity, options_.silence);
  roster_.set_desk(desk_->variable());
}

/// Who starts a whole job answers for it; of a part of one, its coordinator knows more.
void LaunchRun::open_status_door() {
  const MemberMetrics own{
      job_id(options_.job), {.kind = Member::agent, .host = own_host_name(), .pid = getpid()}, {}, 0};
  door_ = std::make_unique<StatusDoor>([this, own] {
    MemberMetrics now = own;
    now.snapshot = registry_.snapshot();
    return std::vector{now};
  });
}

void LaunchRun::say(const std::string& sentence) const {
  if (options_.say) options_.say(sentence);
}

// ---- what happens ----

void LaunchRun::wait_for_events() {
  const int news = desk_ ? (staff_ ? desk_->descriptor() : -1) : job_over_ ? -1 : options_.crew_changed;
  std::vector<pollfd> polls = {{signals_.descriptor(), POLLIN, 0},
                               {failed_elsewhere_ ? -1 : options_.failed, POLLIN, 0},
                               {hung_up_ ? -1 : options_.hangup, POLLIN, 0},
                               {servers_alone_ && !others_ended_ ? options_.others_ended : -1, POLLIN, 0},
                               {news, POLLIN, 0}};
  const size_t first = polls.size();
  for (const Child& child : roster_.all()) {
    polls.push_back({child.status ? -1 : child.process.get(), POLLIN, 0});
    for (const Pipe& stream : child.streams) polls.push_back({stream.descriptor(), POLLIN, 0});
  }
  if (poll(polls.data(), polls.size(), milliseconds_left()) <= 0) return;
  if (polls[0].revents != 0) forward_signal();
  if (polls[1].revents != 0) end_for_failure_elsewhere();
  if (polls[2].revents != 0) read_wish();
  if (polls[3].revents != 0) end_servers_soon();
  hear(polls, first);
}

int LaunchRun::milliseconds_left() const {
  std::optional<Clock::time_point> next = end_;
  if (look_again_ && (!next || *look_again_ < *next)) next = look_again_;
  return next ? static_cast<int>(std::max(0.0, Seconds(*next - Clock::now()).count()) * 1e3) + 1 : -1;
}

/// Output first: the last words belong to the death that follows. And before it who is first in the crew: whoever
/// writes as the first has heard of it later.
void LaunchRun::hear(const std::vector<pollfd>& polls, size_t first) {
  if (staff_) staff_->look(ask_desk());
  size_t place = first;
  for (Child& child : roster_.all()) {
    place++;
    for (Pipe& stream : child.streams)
      if (polls[place++].revents != 0) stream.pump(child.lines);
  }
  place = first;
  for (size_t index = 0; index < roster_.all().size(); index++) {
    if (polls[place].revents != 0) reap(index);
    place += 1 + roster_.all()[index].streams.size();
  }
}

void LaunchRun::reap(size_t index) {
  Child& child = roster_.all()[index];
  int status = 0;
  if (waitpid(child.pid, &status, WNOHANG) != child.pid) return;
  child.status = status;
  count_.ended.add();
  if (status != 0) count_.deaths.add();
  child.ended = seconds_since(begin_);
  child.pressed = asked_;
  kill(-child.pid, SIGKILL);  // whatever it started itself
  note_end(index);
  child.retire();
}

void LaunchRun::note_end(size_t index) {
  Child& child = roster_.all()[index];
  const bool well = *child.status == 0;
  if (!well && child.is_server && asked_) return;  // a server that had to be asked has lost nothing
  if (!well && job_over_ && asked_) return;        // nor has a way to a host that is not there any more
  if (!well && staff_ && !child.rowed && (crew_ended_ || interrupted_ != 0)) return;  // nor has a spare
  if (!well) {
    failed_.push_back(index);
    child.dispensable = others_go_on(child);
    if (!child.dispensable) return press_for_failure();
  }
  if (child.is_server && child.dispensable && Clock::now() - child.began > kTooEarly)
    servers_gone_.push_back(child.number);
  if (staff_ && !child.is_server) staff_->ended(child);
}

/// By the policy, and there are some, or they have come to a good end. Where a whole crew is gone, others may go on
/// with what it has left, unless it died of an error that they would find too. An agent's part of it is not the whole.
bool LaunchRun::others_go_on(const Child& gone) const {
  if (job_over_ && interrupted_ == 0) return true;
  if (gone.is_server) return servers_go_on(gone);
  if (crew_ended_ && !staff_->in_crew(gone)) return true;  // it had been given up
  if (!options_.elasticity.elastic() || end_) return false;
  const CrewView crew = staff_ ? staff_->crew() : options_.crew ? options_.crew() : CrewView{.complete = true};
  if (!crew.complete || !crew.failure.empty()) return false;
  if (staff_)
    return !gone.rowed || !staff_->crew_ended() || staff_->closed() ||
           ((gone.killed() || options_.crew) && (roster_.living() > 0 || staff_->replaces()));
  return std::any_of(roster_.all().begin(), roster_.all().end(),
                     [](const Child& child) { return !child.is_server && (!child.status || *child.status == 0); });
}

/// One that was killed has a backup, if it is not the last one.
bool LaunchRun::servers_go_on(const Child& gone) const {
  return options_.replicas > 0 && gone.killed() && !asked_ &&
         std::any_of(roster_.all().begin(), roster_.all().end(),
                     [](const Child& child) { return child.is_server && !child.status; });
}

/// New ones, which know nothing, and become the backups of those that have none.
void LaunchRun::replace_servers() {
  for (const int number : std::exchange(servers_gone_, {})) {
    if (end_ || servers_alone_) continue;
    say(fmt::format("server {} was killed; its backup goes on, and another server {} is started", number, number));
    roster_.start_server(number);
    count_.started.add();
  }
}

CrewView LaunchRun::ask_desk() { return desk_ ? desk_->crew() : options_.crew(); }

/// Of a part of a job, whose workers have all been sent away: others may be asked for later.
bool LaunchRun::stands_by() const {
  return staff_ && options_.crew && options_.crew_changed >= 0 && !staff_->closed() && interrupted_ == 0 &&
         !failed_at_ && !failed_elsewhere_ && !end_;
}

/// What an elastic job needs after each event: who is missing is started; who is of no use any more is ended.
void LaunchRun::tend() {
  replace_servers();
  if (!staff_) return look_after_agents();
  staff_->look(ask_desk());
  if (staff_->hopeless() && desk_) desk_->hurry("Workers die again and again soon after their start");
  if (!staff_->crew().failure.empty() || (staff_->hopeless() && !desk_)) wind_down();
  if (interrupted_ != 0 || failed_at_ || staff_->crew().over || staff_->crew().closing) staff_->close();
  if (staff_->closed() && staff_->crew_ended()) end_idle_newcomers();
  look_again_ = staff_->tend();
}

/// Of an elastic job, of which only the agents are here.
void LaunchRun::look_after_agents() {
  if (!options_.commands.empty() && options_.crew_changed >= 0 && !job_over_ && ask_desk().over) end_deaf_agents();
}

// ---- the end ----

LaunchResult LaunchRun::result() const {
  const Ended ended{.children = roster_.all(),
                    .failed = failed_,
                    .interrupted = interrupted_,
                    .at_once = at_once_,
                    .asked_to_stop_at = asked_to_stop_at_,
                    .desk_says = staff_ ? staff_->crew().failure : ""};
  LaunchResult result = verdict(ended, options_);
  result.under_way = !staff_ || staff_->crew().complete;
  return result;
}

}  // namespace trireme::cluster
