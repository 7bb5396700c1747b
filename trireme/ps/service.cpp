#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstring>
#include <sstream>
#include <utility>

#include <trireme/base/error.h>
#include <trireme/ps/coded.h>
#include <trireme/ps/service.h>
#include <trireme/ps/sparse_table.h>

#include "chunk_state.h"

namespace trireme::ps {
namespace {

constexpr size_t kMostKeys = 1 << 24;  // of one request

std::span<const std::byte> bytes_of(const std::string& text) {
  return std::as_bytes(std::span(text.data(), text.size()));
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

Service::Service(int server, std::function<std::byte*(size_t)> memory, Helpers& helpers, metrics::Registry& registry,
                 int model, Neighbours* neighbours)
    : server_(server),
      model_(model),
      neighbours_(neighbours),
      memory_(std::move(memory)),
      helpers_(helpers),
      registry_(registry),
      count_(model == kRoll ? nullptr : &registry, label()) {}

Service::~Service() = default;

// ---- who is here ----

std::string Service::open(int worker, const std::string& text) {
  try {
    if (!job_) {
      Job job = Job::decode(text);
      if (worker < 0 || worker >= job.workers)
        return fmt::format("there is no worker {} among {}", worker, job.workers);
      if (server_ >= job.servers)
        return fmt::format("worker {} was told of {} servers, but this is server {}", worker, job.servers, server_);
      parameters_ = memory_(job.layout.bytes());
      job_ = std::move(job);
      job_text_ = text;
      job_from_ = worker;
      chunks_ =
          plan_chunks(job_->layout, plan_buckets(job_->layout, job_->bucket_bytes), job_->servers, job_->chunk_bytes);
      for (const Chunk& chunk : chunks_)
        states_.push_back(chunk.server == server_ ? std::make_unique<ChunkState>(chunk, *job_) : nullptr);
      if (job_->codec) decoder_ = std::make_unique<Decoder>(*job_, chunks_);
      for (const SparseTable::Options& table : job_->tables) tables_.push_back(std::make_unique<SparseTable>(table));
      workers_.resize(static_cast<size_t>(job_->workers));
      count_.add_clocks(model_ == kRoll ? nullptr : &registry_, label(), workers_.size());
    }
    if (text != job_text_) return "the workers disagree. " + first_difference(job_text_, job_from_, text, worker);
  } catch (const Error& error) {
    return error.what();
  }
  if (worker < 0 || worker >= job_->workers)
    return fmt::format("there is no worker {} among {}", worker, job_->workers);
  Worker& w = workers_[static_cast<size_t>(worker)];
  if (w.standing != Worker::absent && w.standing != Worker::present)
    return fmt::format("worker {} has been here, and is gone", worker);
  w.standing = Worker::present;
  return "";
}

void Service::gone(int worker, const Departure& departure) {
  if (!job_ || worker < 0 || worker >= job_->workers) return;
  Worker& w = workers_[static_cast<size_t>(worker)];
  if (w.standing > Worker::present) return;
  const std::string& how = departure.how;
  away(w, departure.victim ? Worker::victim : how.empty() ? Worker::left : Worker::lost);
  if (!departure.victim) forget(worker, how);
  if (neighbours_ != nullptr) neighbours_->left(*this, worker, departure);
}

/// What it had asked for; and those who wait for it hear that it is gone.
void Service::forget(int worker, const std::string& how) {
  if (lock_holder_ == worker) lock_holder_ = -1;
  std::erase_if(beginning_, [&](const Waiting& waiting) { return waiting.incoming.from->worker == worker; });
  std::erase_if(at_barrier_, [&](const Incoming& in) { return in.from->worker == worker; });
  std::erase_if(delayed_, [&](const auto& entry) { return entry.second.from->worker == worker; });
  for (const auto& state : states_)
    if (state) {
      std::erase_if(state->pulls, [&](const Incoming& in) { return in.from->worker == worker; });
      if (std::exchange(state->gathered, false))
        for (auto& in : state->pushed) in.reset();  // they have their answers
      state->pushed[static_cast<size_t>(worker)].reset();
    }
  if (!how.empty() && failure_.empty()) failure_ = how;
  fail_waiting(how.empty()
                   ? fmt::format("worker {} has ended its part of the job. Do all workers run the same steps?", worker)
                   : how);
  release_waiting();
}

void Service::away(Worker& worker, Worker::Standing standing) {
  worker.standing = standing;
  worker.clock = kGone;
  away_++;
}

bool Service::here(int worker) const {
  return worker >= 0 && static_cast<size_t>(worker) < workers_.size() &&
         workers_[static_cast<size_t>(worker)].standing == Worker::present;
}

void Service::rest(int worker) {
  if (!here(worker) || job_->rules.bound < 0) return;
  workers_[static_cast<size_t>(worker)].clock = kGone;
  release_waiting();
}

void Service::release() {
  states_.clear();
  decoder_.reset();
  chunks_.clear();
  tables_.clear();
  rows_ = {};
  parameters_ = nullptr;
}

void Service::leave(const Incoming& in) {
  const bool victim = (in.request.flags & kVictim) != 0, failed = (in.request.flags & kFailed) != 0;
  const std::string how =
      failed ? fmt::format("{} stopped after an error of its own (see its output)", in.from->name()) : "";
  gone(in.from->worker, {victim ? "" : how, victim});
}

int Service::first_gone() const {
  const auto found = std::find_if(workers_.begin(), workers_.end(), [](const Worker& w) {
    return w.standing == Worker::left || w.standing == Worker::lost;
  });
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
      const std::string text = registry_.snapshot().encode(kMostWords);
      return answer(in, {}, bytes_of(text));
    }
    case Verb::explain: {
      const std::string text = explain(in.from->worker, in.request.version);
      return answer(in, {}, bytes_of(text));
    }
    case Verb::leave:
      answer(in, {});
      return leave(in);
    case Verb::norm:
      return norm(in);
    case Verb::apply:
      return apply(in);
    case Verb::show_state:
      return show_state(in);
    case Verb::take_state:
      return take_state(in);
    case Verb::show_rows:
      return show_rows(in);
    case Verb::take_rows:
      return take_rows(in);
    case Verb::count:
      break;
  }
}

bool Service::check(const Incoming& in, std::string& why) const {
  const Request& r = in.request;
  if (!job_ || in.from->worker < 0 || in.from->worker >= job_->workers)
    return why = "a request before the worker was admitted", false;
  if (workers_[static_cast<size_t>(in.from->worker)].standing != Worker::present)
    return why = "a request of a worker that has left", false;
  return check_content(in, why);
}

/// Whoever it is from.
bool Service::check_content(const Incoming& in, std::string& why) const {
  const Request& r = in.request;
  if (r.id == 0) return why = "a request without a number", false;
  if (r.verb >= Verb::count) return why = fmt::format("there is no request {}", static_cast<int>(r.verb)), false;
  if ((r.verb == Verb::push || r.verb == Verb::sparse_push) && !(std::isfinite(r.lr) && r.lr >= 0))
    return why = fmt::format("a learning rate of {}", r.lr), false;
  if (r.verb == Verb::push || r.verb == Verb::pull || r.verb == Verb::set) return check_range(in, why);
  if (r.verb == Verb::take &&
      (r.extra == 0 || r.extra > 1 << 20 || r.bytes > uint64_t{1} << 40 || r.step < 0 || r.step > int64_t{1} << 40))
    return why = "an epoch that cannot be", false;
  if (r.verb == Verb::begin && r.step < 0) return why = "a step below 0", false;
  if (r.verb == Verb::apply && !(r.lr >= 0 && r.lr <= 1)) return why = fmt::format("a factor of {}", r.lr), false;
  if (r.verb == Verb::show_state || r.verb == Verb::take_state) return check_state(in, why);
  if (r.verb == Verb::show_rows || r.verb == Verb::take_rows) return check_rows(in, why);
  if (r.verb != Verb::sparse_push && r.verb != Verb::sparse_pull) return true;
  if (r.table >= tables_.size())
    return why = fmt::format("there is no table {}; the job has {}", r.table, tables_.size()), false;
  if (r.version > kMostKeys)
    return why = fmt::format("{} keys in one request; {} are allowed", r.version, kMostKeys), false;
  const size_t row = job_->tables[r.table].width * sizeof(float),
               wanted = r.version * (sizeof(uint64_t) + (r.verb == Verb::sparse_push ? row : 0));
  if (in.data.size() != wanted)
    return why = fmt::format("{} bytes for {} keys of table '{}': {} are needed", in.data.size(), r.version,
                             job_->tables[r.table].name, wanted),
           false;
  return true;
}

bool Service::check_range(const Incoming& in, std::string& why) const {
  const Request& r = in.request;
  if (r.chunk >= chunks_.size())
    return why = fmt::format("there is no chunk {}; the model has {}", r.chunk, chunks_.size()), false;
  const Chunk& chunk = chunks_[r.chunk];
  if (chunk.server != server_)
    return why = fmt::format("chunk {} belongs to server {}, not to server {}", r.chunk, chunk.server, server_), false;
  const size_t element = size_of(chunk.dtype);
  if (r.begin < chunk.range.begin || r.begin > chunk.range.end || r.bytes > chunk.range.end - r.begin || r.bytes == 0)
    return why = fmt::format("bytes {} to {} are not in chunk {} ('{}'), which is {} to {}", r.begin, r.begin + r.bytes,
                             r.chunk, chunk.name, chunk.range.begin, chunk.range.end),
           false;
  if ((r.begin - chunk.range.begin) % element != 0 || r.bytes % element != 0)
    return why = fmt::format("half an element of chunk {}", r.chunk), false;
  const bool whole = r.begin == chunk.range.begin && r.bytes == chunk.range.size();
  if (r.verb == Verb::push && job_->rules.order != Order::on_arrival && !whole)
    return why = fmt::format("a part of chunk {}: where workers wait for each other, whole chunks are pushed", r.chunk),
           false;
  if (r.verb == Verb::push && (r.flags & kCoded) != 0) {
    if (!decoder_) return why = "a gradient of a codec, and the job has none", false;
    if (!whole) return why = fmt::format("a part of chunk {}: codecs encode whole chunks", r.chunk), false;
    if (in.data.size() != decoder_->bytes(r.chunk) || r.extra != in.data.size())
      return why = fmt::format("{} bytes came for chunk {}, which the codec makes {} of", in.data.size(), r.chunk,
                               decoder_->bytes(r.chunk)),
             false;
    return true;
  }
  const bool brings = r.verb == Verb::push || (r.verb == Verb::set && (r.flags & kInPlace) == 0);
  if (brings && in.data.size() != r.bytes)
    return why = fmt::format("{} bytes came for {} of chunk {}", in.data.size(), r.bytes, r.chunk), false;
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
  count_.refused.add();
  const std::string text = status == Status::peer_lost ? why
                                                       : fmt::format("server {} refused a {} of worker {}: {}", server_,
                                                                     name_of(in.request.verb), in.from->worker, why);
  Reply reply{.id = in.request.id, .verb = in.request.verb, .status = status, .bytes = text.size()};
  in.from->reply(reply, bytes_of(text));
}

// ---- sparse ----

void Service::sparse(const Incoming& in) try {
  const Request& r = in.request;
  SparseTable& table = *tables_[r.table];
  const std::span keys(reinterpret_cast<const uint64_t*>(in.data.data()), r.version);
  count_.keys.add(static_cast<double>(keys.size()));
  if (r.verb == Verb::sparse_push) {
    if (!worker_of(in).seen.add(r.id)) return count_.repeated.add(), answer(in, {});
    table.push(keys, reinterpret_cast<const float*>(in.data.data() + keys.size_bytes()), r.lr);
    table.tick();
    count_.pushed_bytes.add(static_cast<double>(in.data.size()));
    show_rows();
    return answer(in, {});
  }
  const size_t floats = keys.size() * job_->tables[r.table].width;
  const std::span<std::byte> room = in.from->room(r, floats * sizeof(float));
  if (room.empty()) rows_.resize(floats);
  float* rows = room.empty() ? rows_.data() : reinterpret_cast<float*>(room.data());
  table.pull(keys, rows);
  count_.pulled_bytes.add(static_cast<double>(floats * sizeof(float)));
  show_rows();
  answer(in, {.begin = r.extra}, std::as_bytes(std::span(rows, floats)));
} catch (const Error& error) {
  refuse(in, Status::invalid, error.what());
}

void Service::show_rows() {
  size_t rows = 0;
  for (const auto& table : tables_) rows += table->rows();
  count_.rows.set(static_cast<double>(rows));
}

// ---- time and control ----

std::optional<Clock::time_point> Service::due() const {
  if (delayed_.empty()) return std::nullopt;
  return std::min_element(delayed_.begin(), delayed_.end(),
                          [](const auto& a, const auto& b) { return a.first < b.first; })
      ->first;
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
  int worker = -1;
  double milliseconds = -1;
  if (verb != "delay" || !(in >> worker >> milliseconds) || in >> more)
    fail<InvalidArgument>("'{}' is not understood: delay WORKER MILLISECONDS", words);
  if (!job_) fail<InvalidArgument>("the job has not begun");
  if (worker < 0 || worker >= job_->workers)
    fail<InvalidArgument>("there is no worker {}; the job has workers 0 to {}", worker, job_->workers - 1);
  if (!(milliseconds >= 0 && milliseconds <= kLongestDelay))
    fail<InvalidArgument>("a delay is 0 to {} milliseconds, not {}", kLongestDelay, milliseconds);
  workers_[static_cast<size_t>(worker)].delay = Seconds(milliseconds / 1e3);
  return fmt::format("server {}{}: updates of worker {} are delayed by {:g} ms", server_,
                     named_ ? fmt::format(", model {}", model_) : "", worker, milliseconds);
}

std::string Service::label() const { return fmt::format("model {}", model_); }

}  // namespace trireme::ps
