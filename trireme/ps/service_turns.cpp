// Who may begin, who gets which work, who has the lock, who has come to the barrier.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "chunk_state.h"

namespace trireme::ps {

void Service::begin(Incoming in, int64_t step, int64_t piece) {
  worker_of(in).clock = step;
  beginning_.push_back({std::move(in), step, piece});
  const size_t waiting = beginning_.size();
  release_waiting();
  if (beginning_.size() >= waiting) count_.begins_held.add();
}

/// A step of a worker that does its own share. All stop before the same one: the first that nobody has begun when one
/// asks for it.
void Service::begin_own(Incoming in) {
  const int64_t step = in.request.step;
  if ((in.request.flags & kStop) != 0 && stop_before_ == kGone) {
    stop_before_ = step;
    for (const Worker& worker : workers_)
      if (worker.standing == Worker::present)  // one that rests has begun steps, too
        stop_before_ = std::max(stop_before_, (worker.clock == kGone ? worker.begun : worker.clock) + 1);
  }
  if (step < stop_before_) return begin(std::move(in), step, 0);
  worker_of(in).clock = kGone;
  answer(in, {.status = Status::stopped});
  release_waiting();
}

/// Every change of a clock may let others begin.
void Service::release_waiting() {
  clocks_.clear();
  for (const Worker& worker : workers_) {
    const bool counts = worker.clock != kGone;
    count_.clocks[clocks_.size()].set(counts ? static_cast<double>(worker.clock) : std::nan(""));
    clocks_.push_back(worker.clock);
  }
  for (size_t i = 0; i < beginning_.size();) {
    const Waiting& waiting = beginning_[i];
    if (judge_begin(job_->rules, clocks_, waiting.incoming.from->worker, waiting.step).verdict != Verdict::apply) {
      i++;
      continue;
    }
    worker_of(waiting.incoming).begun = waiting.step;
    answer(waiting.incoming, {.value = waiting.piece});
    beginning_.erase(beginning_.begin() + static_cast<ptrdiff_t>(i));
  }
}

void Service::take(Incoming in) {
  Worker& worker = worker_of(in);
  const Request& r = in.request;
  if (!worker.seen.add(r.id)) {
    count_.repeated.add();
    for (Waiting& waiting : beginning_)
      if (waiting.incoming.from->worker == in.from->worker && waiting.incoming.request.id == r.id)
        return void(waiting.incoming = std::move(in));
    if (worker.answer.id == r.id) in.from->reply(worker.answer, {});
    return;
  }
  if ((r.flags & kStop) != 0) stopped_ = true;
  const auto epoch = static_cast<int64_t>(r.version);
  if (epoch > epoch_) epoch_ = epoch, next_piece_ = 0;
  const bool end = epoch < epoch_ || next_piece_ >= static_cast<int64_t>(r.bytes);
  const bool stops = stopped_ && next_piece_ % static_cast<int64_t>(r.extra) == 0;  // no step is left in the middle
  if (stops || end) {
    worker.clock = kGone;                                         // nobody waits for one that has nothing to do
    answer(in, {.status = end ? Status::end : Status::stopped});  // an end is one for all alike: they may meet there
    release_waiting();
    if (neighbours_ != nullptr) neighbours_->rests(*this, in.from->worker);
    return;
  }
  const int64_t piece = next_piece_++, step = r.step + piece / static_cast<int64_t>(r.extra);
  begin(std::move(in), step, piece);
}

void Service::lock(const Incoming& in) {
  Worker& worker = worker_of(in);
  if (!worker.seen.add(in.request.id)) {
    count_.repeated.add();
    if (worker.answer.id == in.request.id) in.from->reply(worker.answer, {});
    return;
  }
  const bool tried = (in.request.flags & kSkip) == 0;
  const bool granted = tried && judge_lock(lock_holder_, in.from->worker).verdict == Verdict::apply;
  if (granted) lock_holder_ = in.from->worker;
  if (!granted) count_.dropped.add();
  answer(in, {.status = granted ? Status::ok : Status::denied});
}

void Service::barrier(Incoming in) {
  if (in.request.id == worker_of(in).passed) return answer(in, {});  // again: who has left since had come to it
  if (const int missing = first_gone(); missing >= 0)
    return refuse(
        in, Status::peer_lost,
        failure_.empty() ? fmt::format("worker {} has left: it will not come to the barrier", missing) : failure_);
  if (!worker_of(in).seen.add(in.request.id)) {
    for (Incoming& waiting : at_barrier_)
      if (waiting.from->worker == in.from->worker) return void(waiting = std::move(in));
    return answer(in, {});
  }
  const int worker = in.from->worker;
  at_barrier_.push_back(std::move(in));
  if (at_barrier_.size() == workers_.size())
    for (const Incoming& waiting : std::exchange(at_barrier_, {})) {
      worker_of(waiting).passed = waiting.request.id;
      answer(waiting, {});
    }
  else if (neighbours_ != nullptr)
    neighbours_->rests(*this, worker);
}

// ---- who is waited for ----

namespace {

/// "worker 1", "workers 1, 2 and 5"
std::string listed(const std::vector<int>& workers) {
  std::string text = workers.size() == 1 ? "worker " : "workers ";
  for (size_t i = 0; i < workers.size(); i++)
    text += fmt::format("{}{}", i == 0 ? "" : i + 1 == workers.size() ? " and " : ", ", workers[i]);
  return text;
}

const char* have(const std::vector<int>& workers) { return workers.size() == 1 ? "has" : "have"; }

}  // namespace

std::string Service::of_model() const { return named_ ? fmt::format(" of model {}", model_) : ""; }

/// Why a request has not been answered, as a sentence without its end; "" when nothing is known of it.
std::string Service::explain(int worker, uint64_t id) const {
  const auto same = [&](const Incoming& in) { return in.from->worker == worker && in.request.id == id; };
  if (std::any_of(at_barrier_.begin(), at_barrier_.end(), same)) {
    std::vector<int> missing;
    for (int other = 0; other < job_->workers; other++)
      if (std::none_of(at_barrier_.begin(), at_barrier_.end(),
                       [&](const Incoming& in) { return in.from->worker == other; }))
        missing.push_back(other);
    return fmt::format("{} {} not come to the barrier{}", listed(missing), have(missing), of_model());
  }
  for (const Waiting& waiting : beginning_)
    if (same(waiting.incoming))
      return fmt::format("worker {} may not begin step {}{} yet: {}", worker, waiting.step, of_model(),
                         judge_begin(job_->rules, clocks_, worker, waiting.step).reason());
  for (const auto& [due, in] : delayed_)
    if (same(in)) return fmt::format("updates of worker {}{} are delayed (`trireme ctl delay`)", worker, of_model());
  for (const auto& state : states_) {
    if (!state) continue;
    if (const auto& pushed = state->pushed[static_cast<size_t>(worker)]; pushed && same(*pushed))
      return explain_push(*state, worker);
    for (const Incoming& in : state->pulls)
      if (same(in))
        return fmt::format("'{}'{} has version {}, and nobody has made version {}", state->chunk.name, of_model(),
                           state->version, in.request.version);
  }
  return "";
}

std::string Service::explain_push(const ChunkState& state, int worker) const {
  const int64_t step = state.pushed[static_cast<size_t>(worker)]->request.step;
  std::vector<int> missing = {state.turn};
  if (job_->rules.order == Order::together) {
    missing.clear();
    for (int other = 0; other < job_->workers; other++)
      if (!state.pushed[static_cast<size_t>(other)]) missing.push_back(other);
  }
  return fmt::format("{} {} not pushed {} gradient of '{}'{} for step {}", listed(missing), have(missing),
                     missing.size() == 1 ? "its" : "their", state.chunk.name, of_model(), step);
}

}  // namespace trireme::ps
