#include <fmt/format.h>

#include <algorithm>
#include <csignal>

#include "disturb.h"

namespace trireme::tools {
namespace {

constexpr Seconds kForAnswer{0.25}, kBetweenLooks{0.02}, kWhenStruck{0.003};
constexpr double kWindow = 1;  // seconds in front of a blow whose steps say how long a step takes

class Disturber {
 public:
  Disturber(VictimJob& job, const DisturbOptions& options) : job_(job), options_(options) {}

  Disturbance run(const std::vector<Blow>& plan) {
    if (!wait_until(options_.patience, kBetweenLooks, [&] { return look() && begun(); }))
      return note_trouble("the job did not begin to train"), std::move(result_);
    start_ = last_ = steady_seconds();
    for (const Blow& blow : plan) {
      if (!wait_for(blow)) return std::move(result_);
      strike(blow);
      if (!see_next(result_.struck.back()) && !result_.trouble.empty()) return std::move(result_);
      options_.tell(result_.struck.back());
    }
    wait_until(options_.patience, kBetweenLooks, [&] { return look() && !waits_for_full(); });
    return std::move(result_);
  }

 private:
  void note_trouble(const std::string& text) {
    result_.trouble = job_.exit_code()         ? fmt::format("{}: it ended with exit code {}", text, *job_.exit_code())
                      : job_.stop_wanted() > 0 ? "stopped on request"
                                               : text;
  }

  /// Of all that answer. False: nobody is in a crew.
  bool look() {
    workers_ = job_.look(kForAnswer);
    crew_ = crew_of(workers_);
    if (crew_.empty()) return false;
    note_steps();
    note_full();
    return true;
  }

  bool begun() const {
    return std::any_of(crew_.begin(), crew_.end(), [](const WorkerLook& worker) { return worker.since > 0; });
  }

  /// False: the time is up, the job has ended, or somebody wants to stop.
  bool wait_until(Seconds patience, Seconds pause, const std::function<bool()>& condition) {
    const Deadline deadline(patience);
    while (!condition()) {
      if (deadline.passed() || !job_.pass(pause)) return false;
    }
    return true;
  }

  bool strong_enough() const {
    const auto size = static_cast<int>(crew_.size());
    const bool whole = !crew_.empty() && size == static_cast<int>(crew_[0].crew);  // all of it have answered
    return whole && begun() && size >= std::max(options_.leave + 1, options_.full) &&
           static_cast<int>(workers_.size() - crew_.size()) >= options_.spares;
  }

  /// For its time, and for a crew that can bear it.
  bool wait_for(const Blow& blow) {
    const double due = last_ + blow.after;
    const auto ready = [&] { return look() && steady_seconds() >= due && strong_enough(); };
    if (wait_until(options_.patience + Seconds(blow.after), kBetweenLooks, ready)) return true;
    note_trouble(fmt::format("{} blows were struck, and then the crew had {} workers for {:.0f} s",
                             result_.struck.size(), crew_.size(), options_.patience.count()));
    return false;
  }

  void strike(const Blow& blow) {
    const WorkerLook victim = crew_[victim_of(blow, crew_.size())];
    Struck struck{.blow = blow, .rank = victim.rank, .process = victim.process};
    struck.before = static_cast<int>(crew_.size());
    struck.step_ms = step_ms();
    survivors_.clear();
    for (const WorkerLook& worker : crew_)
      if (worker.process != victim.process) survivors_.push_back(worker);
    epoch_ = victim.epoch;
    last_ = steady_seconds();
    job_.signal(victim.process, blow.kind == Blow::kill ? SIGKILL : SIGSTOP);
    struck.at = last_ - start_;
    result_.struck.push_back(struck);
    steps_.clear();
  }

  /// The next step of those who are left, as they tell. False: it did not come.
  bool see_next(Struck& struck) {
    bool stopped = struck.blow.kind == Blow::stop;
    std::optional<double> updates;  // of the first survivor when the stopped one goes on
    const auto seen = [&] {
      const double now = steady_seconds();
      if (stopped && now >= last_ + struck.blow.lasts) {
        const auto before = look_at_first();
        job_.signal(struck.process, SIGCONT);
        stopped = false;
        if (before) updates = before->updates;
        return false;
      }
      const auto survivor = look_at_first();
      if (!survivor) return false;
      if (survivor->epoch > epoch_ && survivor->since > last_) {
        struck.next_ms = (survivor->since - last_) * 1e3;
        struck.after = static_cast<int>(survivor->crew);
        struck.given_up = struck.blow.kind == Blow::stop;
      } else if (updates && survivor->updates > *updates) {
        struck.next_ms = (steady_seconds() - last_) * 1e3;
        struck.after = struck.before;
      }
      return struck.next_ms && !stopped;
    };
    if (wait_until(options_.patience, kWhenStruck, seen)) return true;
    if (stopped) job_.signal(struck.process, SIGCONT);
    note_trouble(fmt::format("no step was made within {:.0f} s after blow {}", options_.patience.count(),
                             result_.struck.size()));
    return false;
  }

  std::optional<WorkerLook> look_at_first() {
    for (const WorkerLook& one : survivors_)
      if (const auto look = job_.look_at(one.process, kForAnswer)) return look;
    return std::nullopt;
  }

  // ---- what a step takes ----
  void note_steps() {
    const double now = steady_seconds();
    steps_.push_back({now, crew_[0]});
    while (steps_.size() > 1 &&
           (steps_.front().first < now - kWindow || steps_.front().second.process != crew_[0].process ||
            steps_.front().second.epoch != crew_[0].epoch))
      steps_.erase(steps_.begin());
  }
  std::optional<double> step_ms() const {
    if (steps_.empty()) return std::nullopt;
    const WorkerLook &first = steps_.front().second, &last = steps_.back().second;
    if (last.steps > first.steps) return (last.busy - first.busy) / (last.steps - first.steps) * 1e3;
    return last.steps > 0 ? std::optional(last.busy / last.steps * 1e3) : std::nullopt;
  }

  // ---- when the crew is as large as before the blow ----
  bool waits_for_full() const {
    return !result_.struck.empty() && result_.struck.back().blow.kind == Blow::kill && !result_.struck.back().full_ms;
  }
  void note_full() {
    if (!waits_for_full()) return;
    Struck& struck = result_.struck.back();
    for (const WorkerLook& worker : crew_)
      if (worker.crew >= struck.before && worker.epoch > epoch_ && worker.since > last_) {
        struck.full_ms = (worker.since - last_) * 1e3;
        return;
      }
  }

  VictimJob& job_;
  const DisturbOptions& options_;
  Disturbance result_;
  std::vector<WorkerLook> workers_, crew_, survivors_;
  std::vector<std::pair<double, WorkerLook>> steps_;  // of the first of the crew, in the last second
  double start_ = 0, last_ = 0;                       // of training, and of the last blow
  double epoch_ = 0;                                  // of the crew that was struck
};

}  // namespace

Disturbance disturb(VictimJob& job, const std::vector<Blow>& plan, const DisturbOptions& options) {
  return Disturber(job, options).run(plan);
}

}  // namespace trireme::tools
