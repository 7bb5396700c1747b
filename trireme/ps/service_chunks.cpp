// Pushes and pulls of chunks.
#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <bit>
#include <cstring>
#include <utility>

#include <trireme/base/error.h>
#include <trireme/ps/coded.h>

#include "chunk_state.h"

namespace trireme::ps {
namespace {

/// g += λ g² (θ − θ₀)
template <class T>
void compensate_as(T* g, const T* now, const T* then, size_t count, double lambda) {
  const T factor = static_cast<T>(lambda);
  for (size_t i = 0; i < count; i++) g[i] += factor * g[i] * g[i] * (now[i] - then[i]);
}

}  // namespace

/// In place of the message: the gradient. False, and refused, when it is damaged: nothing has changed then.
bool Service::decode(Incoming& in) try {
  struct Kept {
    std::shared_ptr<const void> message;  // has the flags of slots
    std::shared_ptr<std::byte> gradient;
  };
  const auto kept = std::make_shared<Kept>(std::move(in.keep), decoder_->decode(in.request.chunk, in.data));
  in.data = {kept->gradient.get(), in.request.bytes};
  in.keep = kept;
  return true;
} catch (const Corruption& damage) {
  refuse(in, Status::invalid, damage.what());
  return false;
}

void Service::push(Incoming in, Clock::time_point now) {
  Worker& worker = worker_of(in);
  const size_t came = in.data.size();
  if ((in.request.flags & kCoded) != 0 && !decode(in)) return;
  if (!worker.seen.add(in.request.id)) return repeat_push(in);
  count_.pushes.add();
  count_.pushed_bytes.add(static_cast<double>(came));
  if (const Decision decision = judge_push(job_->rules, {.worker = in.from->worker, .delay = worker.delay.count()});
      decision.why == Decision::Why::delayed) {
    count_.held.add();
    delayed_.emplace_back(now + std::chrono::duration_cast<Clock::duration>(worker.delay), std::move(in));
    return;
  }
  arrive(std::move(in));
}

/// Sent again: it waits still, then the answer goes where the repetition came from; or it was applied, then it is only
/// answered.
void Service::repeat_push(Incoming& in) {
  count_.repeated.add();
  ChunkState& state = *states_[in.request.chunk];
  const auto same = [&](const Incoming& other) {
    return other.from->worker == in.from->worker && other.request.id == in.request.id;
  };
  if (auto& waiting = state.pushed[static_cast<size_t>(in.from->worker)]; !state.gathered && waiting && same(*waiting))
    return void(waiting = std::move(in));
  for (auto& [due, waiting] : delayed_)
    if (same(waiting)) return void(waiting = std::move(in));
  answer_push(state, in);
}

void Service::arrive(Incoming in) {
  ChunkState& state = *states_[in.request.chunk];
  const int worker = in.from->worker;
  if (job_->rules.order == Order::on_arrival) return apply_one(state, std::move(in));
  if (const int missing = first_gone(); missing >= 0)
    return refuse(
        in, Status::peer_lost,
        failure_.empty()
            ? fmt::format("worker {} has ended its part of the job; worker {} still waits for it", missing, worker)
            : failure_);
  auto& place = state.pushed[static_cast<size_t>(worker)];
  if (place)
    return refuse(in, Status::invalid,
                  fmt::format("a second gradient of chunk {} before the first was applied", in.request.chunk));
  place = std::move(in);
  job_->rules.order == Order::together ? apply_together(state) : apply_in_turn(state);
}

void Service::apply_together(ChunkState& state) {
  const auto missing = std::find_if(state.pushed.begin(), state.pushed.end(), [](const auto& in) { return !in; });
  const int who = missing == state.pushed.end() ? -1 : static_cast<int>(missing - state.pushed.begin());
  if (judge_push(job_->rules, {.missing = who}).verdict != Verdict::apply) return count_.held.add();
  if ((state.pushed[0]->request.flags & kHold) != 0) return gather(state);
  state.updaters[0].begin_step(state.pushed[0]->request.lr);
  update(state, state.updaters[0], state.chunk.range, sources_of(state), state.pushed[0]->request.flags);
  updated(state);
  for (auto& in : state.pushed) answer_push(state, *std::exchange(in, std::nullopt));
}

/// The gradients stay where they are until it is known how much they count: their data are the workers' to keep, or
/// came along.
void Service::gather(ChunkState& state) {
  state.gathered = true;
  state.squares = space::squares_present(job_->layout, state.chunk.first, state.chunk.last, state.chunk.range,
                                         state.chunk.dtype, nullptr, sources_of(state));
  for (const auto& in : state.pushed) answer(*in, {.version = state.version});
}

/// Whether all gradients of a step are held; refuses the request if not.
bool Service::has_gathered(const Incoming& in) {
  const auto waits = [](const auto& state) { return state && !state->gathered; };
  const auto found = std::find_if(states_.begin(), states_.end(), waits);
  if (found == states_.end()) return true;
  refuse(in, Status::invalid, fmt::format("chunk {} has not got the gradients of all workers", (*found)->chunk.index));
  return false;
}

/// Chunk by chunk, so that the bits do not depend on which was complete first.
void Service::norm(const Incoming& in) {
  if (!has_gathered(in)) return;
  double squares = 0;
  for (const auto& state : states_)
    if (state) squares += state->squares;
  answer(in, {.value = std::bit_cast<int64_t>(squares)});
}

void Service::apply(const Incoming& in) {
  if (!worker_of(in).seen.add(in.request.id)) return count_.repeated.add(), answer(in, {});
  const double factor = in.request.lr;
  if (std::any_of(workers_.begin(), workers_.end(),
                  [](const Worker& worker) { return worker.standing != Worker::present; }))
    return refuse(in, Status::peer_lost,
                  failure_.empty() ? "a worker has left whose gradients were to be applied" : failure_);
  if (!has_gathered(in)) return;
  for (const auto& state : states_) {
    if (!state) continue;
    state->fine = factor > 0;
    if (factor > 0) {
      state->updaters[0].begin_step(state->pushed[0]->request.lr);
      state->updaters[0].scale(factor);
      update(*state, state->updaters[0], state->chunk.range, sources_of(*state), state->pushed[0]->request.flags);
    }
    for (auto& gradient : state->pushed) gradient.reset();
    state->gathered = false;
    updated(*state);
  }
  answer(in, {});
}

void Service::apply_in_turn(ChunkState& state) {
  while (true) {
    auto& next = state.pushed[static_cast<size_t>(state.turn)];
    if (!next || judge_push(job_->rules, {.worker = next->from->worker, .turn = state.turn}).verdict != Verdict::apply)
      break;
    Incoming in = *std::exchange(next, std::nullopt);
    state.turn = (state.turn + 1) % job_->workers;
    apply_one(state, std::move(in));
  }
  if (std::any_of(state.pushed.begin(), state.pushed.end(), [](const auto& in) { return in.has_value(); }))
    count_.held.add();
}

void Service::apply_one(ChunkState& state, Incoming in) {
  const auto worker = static_cast<size_t>(in.from->worker);
  const uint64_t staleness = state.version - std::min(state.version, state.pulled[worker]);
  count_.staleness.add(static_cast<double>(staleness));
  if (server_ == 0) {
    int64_t furthest = in.request.step;
    for (const Worker& w : workers_)
      if (w.clock != kGone) furthest = std::max(furthest, w.begun);
    count_.age.add(static_cast<double>(furthest - in.request.step));
  }
  if (!state.then.empty() && !state.then[worker].empty() && staleness > 0) compensate(state, in);
  const space::Range range{in.request.begin, in.request.begin + in.request.bytes};
  const space::Source source[] = {{in.data.data() - in.request.begin, in.present}};
  space::Updater& updater = state.updater_of(worker);
  updater.begin_step(rate_for(job_->rules, in.request.lr, staleness));
  update(state, updater, range, source, in.request.flags);
  updated(state);
  answer_push(state, in);
}

/// Element by element, so that it does not matter who does which piece.
void Service::update(ChunkState& state, space::Updater& updater, space::Range range,
                     std::span<const space::Source> sources, uint8_t flags) {
  updater.count(0, job_->layout, state.chunk.first, state.chunk.last, range, sources);
  updater.watch((flags & kWatch) != 0);
  std::atomic<bool> fine{true};
  helpers_.run(range.size(), [&](size_t begin, size_t end) {
    const space::Range piece{range.begin + begin, range.begin + end};
    if (!update_present(updater, 0, job_->layout, state.chunk.first, state.chunk.last, piece, state.chunk.dtype,
                        parameters_, sources))
      fine.store(false);
  });
  state.fine = fine.load();
}

std::vector<space::Source> Service::sources_of(const ChunkState& state) {
  std::vector<space::Source> sources;
  for (const auto& in : state.pushed) sources.push_back({in->data.data() - state.chunk.range.begin, in->present});
  return sources;
}

/// The gradient that the worker would have found with today's parameters, to first order. It goes into a copy: the
/// worker's own stays as it is.
void Service::compensate(ChunkState& state, Incoming& in) {
  auto copy = std::make_shared<std::vector<std::byte>>(in.data.begin(), in.data.end());
  const size_t offset = in.request.begin - state.chunk.range.begin;
  const std::byte *now = parameters_ + in.request.begin,
                  *then = state.then[static_cast<size_t>(in.from->worker)].data() + offset;
  const auto as = [&]<class T>(T) {
    compensate_as(reinterpret_cast<T*>(copy->data()), reinterpret_cast<const T*>(now), reinterpret_cast<const T*>(then),
                  copy->size() / sizeof(T), job_->rules.lambda);
  };
  state.chunk.dtype == DType::f64 ? as(double{}) : as(float{});
  in.data = *copy;
  in.keep = std::shared_ptr<const void>(copy, copy->data());
}

void Service::updated(ChunkState& state) {
  state.version++;
  count_.updates.add();
  for (size_t i = 0; i < state.pulls.size();) {
    if (state.version < state.pulls[i].request.version) {
      i++;
      continue;
    }
    const Incoming in = std::move(state.pulls[i]);
    state.pulls.erase(state.pulls.begin() + static_cast<ptrdiff_t>(i));
    answer_pull(state, in);
  }
}

void Service::answer_push(ChunkState& state, const Incoming& in) {
  if ((in.request.flags & kAnswerWithParameters) != 0) return answer_pull(state, in);
  answer(in, {.version = state.version, .flawed = !state.fine});
}

void Service::pull(Incoming in) {
  ChunkState& state = *states_[in.request.chunk];
  if (state.version >= in.request.version) return answer_pull(state, in);
  state.pulls.push_back(std::move(in));
}

/// A worker has the chunk as it is now.
void Service::has(ChunkState& state, int worker) {
  state.pulled[static_cast<size_t>(worker)] = state.version;
  if (!state.then.empty())
    state.then[static_cast<size_t>(worker)].assign(parameters_ + state.chunk.range.begin,
                                                   parameters_ + state.chunk.range.end);
}

void Service::answer_pull(ChunkState& state, const Incoming& in) {
  count_.pulls.add();
  const Request& r = in.request;
  if (r.verb == Verb::pull && r.step >= 0 && static_cast<uint64_t>(r.step) == state.version)
    return answer(in, {.status = Status::unchanged, .version = state.version, .begin = r.begin});
  has(state, in.from->worker);
  const Reply reply{.version = state.version, .begin = r.begin, .flawed = !state.fine};
  if ((r.flags & kInPlace) != 0) return answer(in, reply);
  count_.pulled_bytes.add(static_cast<double>(r.bytes));
  answer(in, reply, {parameters_ + r.begin, r.bytes});
}

void Service::set(const Incoming& in) {
  ChunkState& state = *states_[in.request.chunk];
  if (worker_of(in).seen.add(in.request.id)) {
    if ((in.request.flags & kInPlace) == 0)
      std::memcpy(parameters_ + in.request.begin, in.data.data(), in.request.bytes);
    state.fine = true;
    updated(state);
  }
  has(state, in.from->worker);
  answer(in, {.version = state.version});
}

}  // namespace trireme::ps
