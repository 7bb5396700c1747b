#include <trireme/ps/service.h>

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstring>
#include <nlohmann/json.hpp>
#include <sstream>

#include <trireme/base/error.h>
#include <trireme/ps/sparse_table.h>

namespace trireme::ps {
namespace {

constexpr size_t kMostKeys = 1 << 24;   // of one request
constexpr double kLongestDelay = 60e3;  // milliseconds

std::span<const std::byte> bytes_of(const std::string& text) { return std::as_bytes(std::span(text.data(), text.size())); }

/// g += λ g² (θ − θ₀)
template <class T>
void compensate_as(T* g, const T* now, const T* then, size_t count, double lambda) {
  const T factor = static_cast<T>(lambda);
  for (size_t i = 0; i < count; i++) g[i] += factor * g[i] * g[i] * (now[i] - then[i]);
}

}  // namespace

bool SeenIds::add(uint64_t id) {
  if (id == 0 || id + kWindow <= highest_) return false;
  for (; highest_ < id; recent_.reset(highest_ % kWindow)) {
    if (id - highest_ > kWindow) highest_ = id - kWindow;  // a jump: nothing in between was seen
    highest_++;
  }
  if (recent_.test(id % kWindow)) return false;
  recent_.set(id % kWindow);
  return true;
}

/// A chunk of this server's.
struct Service::ChunkState {
  explicit ChunkState(const Chunk& chunk, const Job& job)
      : chunk(chunk),
        updater(job.optimizer, std::array{chunk.range}),
        pushed(static_cast<size_t>(job.workers)),
        pulled(static_cast<size_t>(job.workers)),
        then(static_cast<size_t>(job.rules.stale == Stale::compensated ? job.workers : 0)) {}

  const Chunk& chunk;
  space::Updater updater;
  uint64_t version = 0;                         // updates so far; the first parameters are version 1
  std::vector<std::optional<Incoming>> pushed;  // by worker: gradients that wait
  std::vector<uint64_t> pulled;                 // by worker: the version that it has
  std::vector<std::vector<std::byte>> then;     // by worker: the parameters that it has, if gradients are to be compensated
  std::vector<Incoming> pulls;                  // that wait for a version
  int turn = 0;
};

Service::Service(int server, std::function<std::byte*(size_t)> memory)
    : server_(server),
      memory_(std::move(memory)),
      pushes_(metrics_.counter("pushes")),
      pulls_(metrics_.counter("pulls")),
      updates_(metrics_.counter("updates")),
      held_(metrics_.counter("held")),
      dropped_(metrics_.counter("dropped")),
      repeated_(metrics_.counter("repeated")),
      refused_(metrics_.counter("refused")),
      begins_held_(metrics_.counter("begins held")),
      keys_(metrics_.counter("keys")),
      staleness_(metrics_.tally("staleness")),
      age_(metrics_.tally("age")) {}

Service::~Service() = default;

// ---- who is here ----

std::string Service::open(int worker, const std::string& text) {
  try {
    if (!job_) {
      Job job = Job::decode(text);
      if (worker < 0 || worker >= job.workers) return fmt::format("there is no worker {} among {}", worker, job.workers);
      if (server_ >= job.servers) return fmt::format("worker {} was told of {} servers, but this is server {}", worker, job.servers, server_);
      parameters_ = memory_(job.layout.bytes());
      job_ = std::move(job);
      job_text_ = text;
      job_from_ = worker;
      chunks_ = plan_chunks(job_->layout, plan_buckets(job_->layout, job_->bucket_bytes), job_->servers, job_->chunk_bytes);
      for (const Chunk& chunk : chunks_) states_.push_back(chunk.server == server_ ? std::make_unique<ChunkState>(chunk, *job_) : nullptr);
      for (const SparseTable::Options& table : job_->tables) tables_.push_back(std::make_unique<SparseTable>(table));
      workers_.resize(static_cast<size_t>(job_->workers));
    }
    if (text != job_text_) return "the workers disagree. " + first_difference(job_text_, job_from_, text, worker);
  } catch (const Error& error) {
    return error.what();
  }
  if (worker < 0 || worker >= job_->workers) return fmt::format("there is no worker {} among {}", worker, job_->workers);
  Worker& w = workers_[static_cast<size_t>(worker)];
  if (w.standing != Worker::absent && w.standing != Worker::present) return fmt::format("worker {} has been here, and is gone", worker);
  w.standing = Worker::present;
  return "";
}

void Service::gone(int worker, const std::string& how) {
  if (!job_ || worker < 0 || worker >= job_->workers) return;
  Worker& w = workers_[static_cast<size_t>(worker)];
  if (w.standing != Worker::present) return;
  w.standing = how.empty() ? Worker::left : Worker::lost;
  w.clock = kGone;
  if (lock_holder_ == worker) lock_holder_ = -1;
  std::erase_if(beginning_, [&](const Waiting& waiting) { return waiting.incoming.from->worker == worker; });
  std::erase_if(at_barrier_, [&](const Incoming& in) { return in.from->worker == worker; });
  std::erase_if(delayed_, [&](const auto& entry) { return entry.second.from->worker == worker; });
  for (const auto& state : states_)
    if (state) {
      std::erase_if(state->pulls, [&](const Incoming& in) { return in.from->worker == worker; });
      state->pushed[static_cast<size_t>(worker)].reset();
    }
  if (!how.empty() && failure_.empty()) failure_ = how;
  fail_waiting(how.empty() ? fmt::format("worker {} has ended its part of the job. Do all workers run the same steps?", worker) : how);
  release_waiting();
}

void Service::leave(const Incoming& in) {
  if ((in.request.flags & kVictim) != 0) {  // the one who is to blame is seen here too: who waits for this one hears of that one
    Worker& worker = worker_of(in);
    worker.standing = Worker::victim;
    worker.clock = kGone;
    return;
  }
  gone(in.from->worker, (in.request.flags & kFailed) != 0 ? fmt::format("{} stopped after an error of its own (see its output)", in.from->name()) : "");
}

int Service::first_gone() const {
  const auto found = std::find_if(workers_.begin(), workers_.end(), [](const Worker& w) { return w.standing == Worker::left || w.standing == Worker::lost; });
  return found == workers_.end() ? -1 : static_cast<int>(found - workers_.begin());
}

/// Those who wait for one who will not come.
void Service::fail_waiting(const std::string& why) {
  for (const Incoming& in : std::exchange(at_barrier_, {})) refuse(in, Status::peer_lost, why);
  if (job_->rules.order == Order::on_arrival) return;
  for (const auto& state : states_) {
    if (!state) continue;
    for (auto& in : state->pushed)
      if (in) refuse(*std::exchange(in, std::nullopt), Status::peer_lost, why);
    for (const Incoming& in : std::exchange(state->pulls, {})) refuse(in, Status::peer_lost, why);
  }
}

bool Service::finished() const {
  return job_ && std::all_of(workers_.begin(), workers_.end(), [](const Worker& w) { return w.standing > Worker::present; });
}

// ---- requests ----

void Service::handle(Incoming in, Clock::time_point now) {
  if (std::string why; !check(in, why)) return refuse(in, Status::invalid, why);
  switch (in.request.verb) {
    case Verb::push:
      return push(std::move(in), now);
    case Verb::pull:
      return pull(std::move(in));
    case Verb::set:
      return set(in);
    case Verb::begin:
      return begin_own(std::move(in));
    case Verb::take:
      return take(std::move(in));
    case Verb::lock:
      return lock(in);
    case Verb::unlock:
      if (lock_holder_ == in.from->worker) lock_holder_ = -1;
      return answer(in, {});
    case Verb::barrier:
      return barrier(std::move(in));
    case Verb::sparse_push:
    case Verb::sparse_pull:
      return sparse(in);
    case Verb::status: {
      const std::string text = status();
      return answer(in, {}, bytes_of(text));
    }
    case Verb::leave:
      answer(in, {});
      return leave(in);
    case Verb::count:
      break;
  }
}

bool Service::check(const Incoming& in, std::string& why) const {
  const Request& r = in.request;
  if (!job_ || in.from->worker < 0 || in.from->worker >= job_->workers) return why = "a request before the worker was admitted", false;
  if (workers_[static_cast<size_t>(in.from->worker)].standing != Worker::present) return why = "a request of a worker that has left", false;
  if (r.id == 0) return why = "a request without a number", false;
  if (r.verb >= Verb::count) return why = fmt::format("there is no request {}", static_cast<int>(r.verb)), false;
  if ((r.verb == Verb::push || r.verb == Verb::sparse_push) && !(std::isfinite(r.lr) && r.lr >= 0))
    return why = fmt::format("a learning rate of {}", r.lr), false;
  if (r.verb == Verb::push || r.verb == Verb::pull || r.verb == Verb::set) return check_range(in, why);
  if (r.verb == Verb::take && (r.extra == 0 || r.extra > 1 << 20 || r.bytes > uint64_t{1} << 40 || r.step < 0 || r.step > int64_t{1} << 40))
    return why = "an epoch that cannot be", false;
  if (r.verb == Verb::begin && r.step < 0) return why = "a step below 0", false;
  if (r.verb != Verb::sparse_push && r.verb != Verb::sparse_pull) return true;
  if (r.table >= tables_.size()) return why = fmt::format("there is no table {}; the job has {}", r.table, tables_.size()), false;
  if (r.version > kMostKeys) return why = fmt::format("{} keys in one request; {} are allowed", r.version, kMostKeys), false;
  const size_t row = job_->tables[r.table].width * sizeof(float), wanted = r.version * (sizeof(uint64_t) + (r.verb == Verb::sparse_push ? row : 0));
  if (in.data.size() != wanted)
    return why = fmt::format("{} bytes for {} keys of table '{}': {} are needed", in.data.size(), r.version, job_->tables[r.table].name, wanted), false;
  return true;
}

bool Service::check_range(const Incoming& in, std::string& why) const {
  const Request& r = in.request;
  if (r.chunk >= chunks_.size()) return why = fmt::format("there is no chunk {}; the model has {}", r.chunk, chunks_.size()), false;
  const Chunk& chunk = chunks_[r.chunk];
  if (chunk.server != server_) return why = fmt::format("chunk {} belongs to server {}, not to server {}", r.chunk, chunk.server, server_), false;
  const size_t element = size_of(chunk.dtype);
  if (r.begin < chunk.range.begin || r.begin > chunk.range.end || r.bytes > chunk.range.end - r.begin || r.bytes == 0)
    return why = fmt::format("bytes {} to {} are not in chunk {} ('{}'), which is {} to {}", r.begin, r.begin + r.bytes, r.chunk, chunk.name, chunk.range.begin,
                             chunk.range.end),
           false;
  if ((r.begin - chunk.range.begin) % element != 0 || r.bytes % element != 0) return why = fmt::format("half an element of chunk {}", r.chunk), false;
  const bool whole = r.begin == chunk.range.begin && r.bytes == chunk.range.size();
  if (r.verb == Verb::push && job_->rules.order != Order::on_arrival && !whole)
    return why = fmt::format("a part of chunk {}: where workers wait for each other, whole chunks are pushed", r.chunk), false;
  const bool brings = r.verb == Verb::push || (r.verb == Verb::set && (r.flags & kInPlace) == 0);
  if (brings && in.data.size() != r.bytes) return why = fmt::format("{} bytes came for {} of chunk {}", in.data.size(), r.bytes, r.chunk), false;
  return true;
}

void Service::answer(const Incoming& in, Reply reply, std::span<const std::byte> data) {
  reply.id = in.request.id;
  reply.verb = in.request.verb;
  reply.table = in.request.table;
  reply.chunk = in.request.chunk;
  reply.bytes = data.size();
  if (in.request.verb == Verb::take || in.request.verb == Verb::lock) worker_of(in).answer = reply;
  in.from->reply(reply, data);
}

void Service::refuse(const Incoming& in, Status status, const std::string& why) {
  refused_++;
  const std::string text =
      status == Status::peer_lost ? why : fmt::format("server {} refused a {} of worker {}: {}", server_, name_of(in.request.verb), in.from->worker, why);
  Reply reply{.id = in.request.id, .verb = in.request.verb, .status = status, .bytes = text.size()};
  in.from->reply(reply, bytes_of(text));
}

// ---- dense ----

void Service::push(Incoming in, Clock::time_point now) {
  Worker& worker = worker_of(in);
  if (!worker.seen.add(in.request.id)) return repeat_push(in);
  pushes_++;
  if (const Decision decision = judge_push(job_->rules, {.worker = in.from->worker, .delay = worker.delay.count()}); decision.why == Decision::Why::delayed) {
    held_++;
    delayed_.emplace_back(now + std::chrono::duration_cast<Clock::duration>(worker.delay), std::move(in));
    return;
  }
  arrive(std::move(in));
}

/// Sent again: it waits still, then the answer goes where the repetition came from; or it was applied, then it is only answered.
void Service::repeat_push(Incoming& in) {
  repeated_++;
  ChunkState& state = *states_[in.request.chunk];
  const auto same = [&](const Incoming& other) { return other.from->worker == in.from->worker && other.request.id == in.request.id; };
  if (auto& waiting = state.pushed[static_cast<size_t>(in.from->worker)]; waiting && same(*waiting)) return void(waiting = std::move(in));
  for (auto& [due, waiting] : delayed_)
    if (same(waiting)) return void(waiting = std::move(in));
  answer_push(state, in);
}

void Service::arrive(Incoming in) {
  ChunkState& state = *states_[in.request.chunk];
  const int worker = in.from->worker;
  if (job_->rules.order == Order::on_arrival) return apply_one(state, std::move(in));
  if (const int missing = first_gone(); missing >= 0)
    return refuse(in, Status::peer_lost,
                  failure_.empty() ? fmt::format("worker {} has ended its part of the job; worker {} still waits for it", missing, worker) : failure_);
  auto& place = state.pushed[static_cast<size_t>(worker)];
  if (place) return refuse(in, Status::invalid, fmt::format("a second gradient of chunk {} before the first was applied", in.request.chunk));
  place = std::move(in);
  job_->rules.order == Order::together ? apply_together(state) : apply_in_turn(state);
}

void Service::apply_together(ChunkState& state) {
  const auto missing = std::find_if(state.pushed.begin(), state.pushed.end(), [](const auto& in) { return !in; });
  const int who = missing == state.pushed.end() ? -1 : static_cast<int>(missing - state.pushed.begin());
  if (judge_push(job_->rules, {.missing = who}).verdict != Verdict::apply) return void(held_++);
  std::vector<space::Source> sources;
  for (const auto& in : state.pushed) sources.push_back({in->data.data() - state.chunk.range.begin, in->present});
  state.updater.begin_step(state.pushed[0]->request.lr);
  update_present(state.updater, 0, job_->layout, state.chunk.first, state.chunk.last, state.chunk.range, state.chunk.dtype, parameters_, sources);
  updated(state);
  for (auto& in : state.pushed) answer_push(state, *std::exchange(in, std::nullopt));
}

void Service::apply_in_turn(ChunkState& state) {
  while (true) {
    auto& next = state.pushed[static_cast<size_t>(state.turn)];
    if (!next || judge_push(job_->rules, {.worker = next->from->worker, .turn = state.turn}).verdict != Verdict::apply) break;
    Incoming in = *std::exchange(next, std::nullopt);
    state.turn = (state.turn + 1) % job_->workers;
    apply_one(state, std::move(in));
  }
  if (std::any_of(state.pushed.begin(), state.pushed.end(), [](const auto& in) { return in.has_value(); })) held_++;
}

void Service::apply_one(ChunkState& state, Incoming in) {
  const auto worker = static_cast<size_t>(in.from->worker);
  const uint64_t staleness = state.version - std::min(state.version, state.pulled[worker]);
  staleness_.add(static_cast<double>(staleness));
  if (server_ == 0) {
    int64_t furthest = in.request.step;
    for (const Worker& w : workers_)
      if (w.clock != kGone) furthest = std::max(furthest, w.clock);
    age_.add(static_cast<double>(furthest - in.request.step));
  }
  if (!state.then.empty() && !state.then[worker].empty() && staleness > 0) compensate(state, in);
  const space::Range range{in.request.begin, in.request.begin + in.request.bytes};
  const space::Source source[] = {{in.data.data() - in.request.begin, in.present}};
  state.updater.begin_step(rate_for(job_->rules, in.request.lr, staleness));
  update_present(state.updater, 0, job_->layout, state.chunk.first, state.chunk.last, range, state.chunk.dtype, parameters_, source);
  updated(state);
  answer_push(state, in);
}

/// The gradient that the worker would have found with today's parameters, to first order. It goes into a copy: the worker's own stays as it is.
void Service::compensate(ChunkState& state, Incoming& in) {
  auto copy = std::make_shared<std::vector<std::byte>>(in.data.begin(), in.data.end());
  const size_t offset = in.request.begin - state.chunk.range.begin;
  const std::byte *now = parameters_ + in.request.begin, *then = state.then[static_cast<size_t>(in.from->worker)].data() + offset;
  const auto as = [&]<class T>(T) {
    compensate_as(reinterpret_cast<T*>(copy->data()), reinterpret_cast<const T*>(now), reinterpret_cast<const T*>(then), copy->size() / sizeof(T),
                  job_->rules.lambda);
  };
  state.chunk.dtype == DType::f64 ? as(double{}) : as(float{});
  in.data = *copy;
  in.keep = std::shared_ptr<const void>(copy, copy->data());
}

void Service::updated(ChunkState& state) {
  state.version++;
  updates_++;
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
  answer(in, {.version = state.version});
}

void Service::pull(Incoming in) {
  ChunkState& state = *states_[in.request.chunk];
  if (state.version >= in.request.version) return answer_pull(state, in);
  state.pulls.push_back(std::move(in));
}

void Service::answer_pull(ChunkState& state, const Incoming& in) {
  pulls_++;
  const auto worker = static_cast<size_t>(in.from->worker);
  const Request& r = in.request;
  if (r.verb == Verb::pull && r.step >= 0 && static_cast<uint64_t>(r.step) == state.version)
    return answer(in, {.status = Status::unchanged, .version = state.version, .begin = r.begin});
  state.pulled[worker] = state.version;
  if (!state.then.empty()) state.then[worker].assign(parameters_ + state.chunk.range.begin, parameters_ + state.chunk.range.end);
  if ((r.flags & kInPlace) != 0) return answer(in, {.version = state.version, .begin = r.begin});
  answer(in, {.version = state.version, .begin = r.begin}, {parameters_ + r.begin, r.bytes});
}

void Service::set(const Incoming& in) {
  ChunkState& state = *states_[in.request.chunk];
  if (worker_of(in).seen.add(in.request.id)) {
    if ((in.request.flags & kInPlace) == 0) std::memcpy(parameters_ + in.request.begin, in.data.data(), in.request.bytes);
    updated(state);
  }
  answer(in, {.version = state.version});
}

// ---- clocks, work, locks ----

void Service::begin(Incoming in, int64_t step, int64_t piece) {
  worker_of(in).clock = step;
  beginning_.push_back({std::move(in), step, piece});
  const size_t waiting = beginning_.size();
  release_waiting();
  if (beginning_.size() >= waiting) begins_held_++;
}

/// A step of a worker that does its own share. All stop before the same one: the first that nobody has begun when one asks for it.
void Service::begin_own(Incoming in) {
  const int64_t step = in.request.step;
  if ((in.request.flags & kStop) != 0 && stop_before_ == kGone) {
    stop_before_ = step;
    for (const Worker& worker : workers_)
      if (worker.clock != kGone) stop_before_ = std::max(stop_before_, worker.clock + 1);
  }
  if (step < stop_before_) return begin(std::move(in), step, 0);
  worker_of(in).clock = kGone;
  answer(in, {.status = Status::stopped});
  release_waiting();
}

/// Every change of a clock may let others begin.
void Service::release_waiting() {
  clocks_.clear();
  for (const Worker& worker : workers_) clocks_.push_back(worker.clock);
  for (size_t i = 0; i < beginning_.size();) {
    const Waiting& waiting = beginning_[i];
    if (judge_begin(job_->rules, clocks_, waiting.incoming.from->worker, waiting.step).verdict != Verdict::apply) {
      i++;
      continue;
    }
    answer(waiting.incoming, {.value = waiting.piece});
    beginning_.erase(beginning_.begin() + static_cast<ptrdiff_t>(i));
  }
}

void Service::take(Incoming in) {
  Worker& worker = worker_of(in);
  const Request& r = in.request;
  if (!worker.seen.add(r.id)) {
    repeated_++;
    for (Waiting& waiting : beginning_)
      if (waiting.incoming.from->worker == in.from->worker && waiting.incoming.request.id == r.id) return void(waiting.incoming = std::move(in));
    if (worker.answer.id == r.id) in.from->reply(worker.answer, {});
    return;
  }
  if ((r.flags & kStop) != 0) stopped_ = true;
  const auto epoch = static_cast<int64_t>(r.version);
  if (epoch > epoch_) epoch_ = epoch, next_piece_ = 0;
  const bool end = epoch < epoch_ || next_piece_ >= static_cast<int64_t>(r.bytes);
  if (stopped_ || end) {
    worker.clock = kGone;  // nobody waits for one that has nothing to do
    answer(in, {.status = stopped_ ? Status::stopped : Status::end});
    return release_waiting();
  }
  const int64_t piece = next_piece_++, step = r.step + piece / static_cast<int64_t>(r.extra);
  begin(std::move(in), step, piece);
}

void Service::lock(const Incoming& in) {
  Worker& worker = worker_of(in);
  if (!worker.seen.add(in.request.id)) {
    repeated_++;
    if (worker.answer.id == in.request.id) in.from->reply(worker.answer, {});
    return;
  }
  const bool tried = (in.request.flags & kSkip) == 0;
  const bool granted = tried && judge_lock(lock_holder_, in.from->worker).verdict == Verdict::apply;
  if (granted) lock_holder_ = in.from->worker;
  if (!granted) dropped_++;
  answer(in, {.status = granted ? Status::ok : Status::denied});
}

void Service::barrier(Incoming in) {
  if (const int missing = first_gone(); missing >= 0)
    return refuse(in, Status::peer_lost, failure_.empty() ? fmt::format("worker {} has left: it will not come to the barrier", missing) : failure_);
  if (!worker_of(in).seen.add(in.request.id)) {
    for (Incoming& waiting : at_barrier_)
      if (waiting.from->worker == in.from->worker) return void(waiting = std::move(in));
    return answer(in, {});
  }
  at_barrier_.push_back(std::move(in));
  if (at_barrier_.size() < workers_.size()) return;
  for (const Incoming& waiting : std::exchange(at_barrier_, {})) answer(waiting, {});
}

// ---- sparse ----

void Service::sparse(const Incoming& in) try {
  const Request& r = in.request;
  SparseTable& table = *tables_[r.table];
  const std::span keys(reinterpret_cast<const uint64_t*>(in.data.data()), r.version);
  keys_ += keys.size();
  if (r.verb == Verb::sparse_push) {
    if (!worker_of(in).seen.add(r.id)) return repeated_++, answer(in, {});
    table.push(keys, reinterpret_cast<const float*>(in.data.data() + keys.size_bytes()), r.lr);
    table.tick();
    return answer(in, {});
  }
  const size_t floats = keys.size() * job_->tables[r.table].width;
  const std::span<std::byte> room = in.from->room(r, floats * sizeof(float));
  if (room.empty()) rows_.resize(floats);
  float* rows = room.empty() ? rows_.data() : reinterpret_cast<float*>(room.data());
  table.pull(keys, rows);
  answer(in, {.begin = r.extra}, std::as_bytes(std::span(rows, floats)));
} catch (const Error& error) {
  refuse(in, Status::invalid, error.what());
}

// ---- time and control ----

std::optional<Clock::time_point> Service::due() const {
  if (delayed_.empty()) return std::nullopt;
  return std::min_element(delayed_.begin(), delayed_.end(), [](const auto& a, const auto& b) { return a.first < b.first; })->first;
}

void Service::tick(Clock::time_point now) {
  for (size_t i = 0; i < delayed_.size();) {
    if (delayed_[i].first > now) {
      i++;
      continue;
    }
    Incoming in = std::move(delayed_[i].second);
    delayed_.erase(delayed_.begin() + static_cast<ptrdiff_t>(i));
    arrive(std::move(in));
    i = 0;
  }
}

std::string Service::control(const std::string& words) {
  std::istringstream in(words);
  std::string verb, more;
  in >> verb;
  if (verb == "status") return status();
  int worker = -1;
  double milliseconds = -1;
  if (verb != "delay" || !(in >> worker >> milliseconds) || in >> more)
    fail<InvalidArgument>("'{}' is not understood: status, or delay WORKER MILLISECONDS", words);
  if (!job_) fail<InvalidArgument>("the job has not begun");
  if (worker < 0 || worker >= job_->workers) fail<InvalidArgument>("there is no worker {}; the job has workers 0 to {}", worker, job_->workers - 1);
  if (!(milliseconds >= 0 && milliseconds <= kLongestDelay)) fail<InvalidArgument>("a delay is 0 to {} milliseconds, not {}", kLongestDelay, milliseconds);
  workers_[static_cast<size_t>(worker)].delay = Seconds(milliseconds / 1e3);
  return fmt::format("server {}: updates of worker {} are delayed by {:g} ms", server_, worker, milliseconds);
}

std::string Service::status() const {
  nlohmann::ordered_json text = {{"server", server_}};
  for (const auto& [name, value] : metrics_.snapshot()) text[name] = value;
  text["clocks"] = nlohmann::ordered_json::array();
  for (const Worker& worker : workers_) text["clocks"].push_back(worker.clock == kGone ? nlohmann::ordered_json() : nlohmann::ordered_json(worker.clock));
  size_t rows = 0;
  for (const auto& table : tables_) rows += table->rows();
  text["rows"] = rows;
  return text.dump();
}

}  // namespace trireme::ps
