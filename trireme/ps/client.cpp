#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <exception>

#include <trireme/base/advice.h>
#include <trireme/base/error.h>
#include <trireme/base/helpers.h>
#include <trireme/base/lock.h>
#include <trireme/base/process.h>
#include <trireme/ps/client.h>
#include <trireme/ps/network/lane.h>
#include <trireme/ps/placement.h>
#include <trireme/ps/shm/lane.h>

#include "operation.h"

namespace trireme::ps {
namespace {

constexpr size_t kMostOpen = 200;  // requests under way to one server: fewer than a ring holds
constexpr Seconds kGoodbye{2}, kShortGoodbye{0.2};
constexpr Seconds kExplanation{0.5};     // for a server that runs to say whom it waits for
constexpr size_t kYieldBytes = 1 << 20;  // a pass over so many is shorter than two wake-ups
constexpr int kYields = 5000;

}  // namespace

/// The way to one server. With replicas, to whichever answers for that one's part.
struct Client::Line {
  struct Open {
    std::shared_ptr<Operation> operation;
    Request request;
    Load load;
  };
  std::unique_ptr<Lane> lane;
  uint64_t next_id = 1;
  std::unordered_map<uint64_t, Open> open;  // by id
  int server = 0;                           // that the lane leads to
  uint64_t epoch = 0;                       // of the charge there, with replicas
  int backup = kNobody;                     // of that server, when the lane began
  size_t place = 0;                         // of the lane's rings in this worker's memory
};

/// Something is wrong: every wait looks. Raised from any thread.
struct Client::Alarm {
  explicit Alarm(std::shared_ptr<shm::Memory> memory) : memory(std::move(memory)) {}

  void raise(const std::string& why) {
    {
      const Lock lock(mutex);
      if (reason.empty()) reason = why;
      raised.store(true);
    }
    ring(memory->bell());
  }
  /// Whatever the lanes have to say is looked at now.
  void calm() {
    const Lock lock(mutex);
    if (reason.empty()) raised.store(false);
  }
  std::string text() {
    const Lock lock(mutex);
    return reason;
  }

  std::shared_ptr<shm::Memory> memory;
  std::atomic<bool> raised{false};
  Mutex mutex;
  std::string reason TRIREME_GUARDED_BY(mutex);  // "": the lanes know
};

// ---- coming and going ----

Client::Client(const Meeting& meeting, int worker, Job job, ClientOptions options)
    : meeting_(meeting),
      job_(std::move(job)),
      worker_(worker),
      options_(options),
      limit_{options.timeout, options.timeout_setting},
      buckets_(plan_buckets(job_.layout, job_.bucket_bytes)),
      chunks_(plan_chunks(job_.layout, buckets_, job_.servers, job_.chunk_bytes)),
      patience_(patience_for(job_.workers + job_.servers, usable_cores())),
      lending_{0, kYields},
      lends_(lends_core(job_.workers, job_.servers, usable_cores())) {
  job_.rules.workers = job_.workers;
  const std::string text = job_.encode();
  const auto servers = static_cast<size_t>(job_.servers);
  const size_t least = options_.model == kRoll ? 0 : kStateRoom;
  if (job_.replicas > 0 && meeting_.store != nullptr)
    fail<InvalidArgument>("worker {} and its servers are on several machines, and replicas are kept on one so far",
                          worker_);
  const auto plot = shm::Plot::plan(job_.replicas > 0 ? 2 * servers : servers, text.size(), job_.layout.bytes(),
                                    job_.layout.size(), job_.tables.empty() ? least : options_.staging_bytes);
  memory_ = std::make_shared<shm::Memory>(Segment::create(plot.total), plot);
  std::memcpy(memory_->job(), text.data(), text.size());
  std::fill_n(memory_->present(), job_.layout.size(), uint8_t{1});
  parameters_ = memory_->parameters();
  alarm_ = std::make_shared<Alarm>(memory_);
  for (const Chunk& chunk : chunks_) by_place_.push_back(chunk.index);
  std::sort(by_place_.begin(), by_place_.end(),
            [&](uint32_t a, uint32_t b) { return chunks_[a].range.begin < chunks_[b].range.begin; });
  connect(Deadline(options_.timeout));
  if (std::any_of(lines_.begin(), lines_.end(), [](const Line& line) { return !line.lane->local(); }))
    patience_ = patience_for(2 * (job_.workers + job_.servers),
                             usable_cores());  // gRPC's threads must not wait for those that wait for them
  if (options_.in_place && job_.replicas == 0) look_in_place();
}

void Client::connect(const Deadline& deadline) {
  for (int server = 0; server < job_.servers; server++) {
    Line& line = lines_.emplace_back();
    line.server = server;
    line.backup = job_.replicas > 0 ? server : kNobody;  // whom to ask first
    line.place = static_cast<size_t>(server);
    line.lane = connect_to(server, deadline);
  }
  watch_servers();
}

/// A server of this machine that is gone raises the alarm. Lanes to other machines raise it themselves.
void Client::watch_servers() {
  std::vector<int> sockets;
  for (const Line& line : lines_)
    if (const auto* local = dynamic_cast<const shm::Lane*>(line.lane.get())) sockets.push_back(local->socket());
  watch_.reset();
  watch_ = std::make_unique<Watch>("trireme-ps", std::move(sockets), [alarm = alarm_](size_t) { alarm->raise(""); });
}

std::unique_ptr<Lane> Client::connect_to(int server, const Deadline& deadline) {
  const Meeting& meeting = meeting_;
  Line& line = lines_[static_cast<size_t>(server)];
  // Whoever has put its address has opened its door.
  const std::string address =
      meeting.store != nullptr ? meeting.store->get(network::address_key(server), deadline) : "";
  for (auto pause = std::chrono::milliseconds(1);; pause = std::min(pause * 2, std::chrono::milliseconds(20))) {
    std::string said;
    if (job_.replicas > 0) {  // a model may begin after the death of a server
      if (auto lane = other_server_for(line, static_cast<size_t>(server), deadline, said)) return lane;
    } else if (Descriptor socket; !meeting.remote_only && (socket = shm::Lane::knock(meeting.job, server))) {
      const shm::Way way{
          .model = options_.model, .worker = worker_, .server = server, .shard = server, .line = line.place};
      return std::make_unique<shm::Lane>(std::move(socket), memory_, way, deadline);
    }
    if (!address.empty())
      return network::connect(
          {.address = address,
           .token = meeting.token,
           .tls = meeting.tls,
           .model = options_.model,
           .worker = worker_,
           .server = server,
           .channels = options_.model == kRoll ? 1 : meeting.channels},
          memory_, [alarm = alarm_] { alarm->raise(""); }, deadline);
    if (deadline.passed())
      fail<Timeout>(
          "worker {} found no server {} on this machine within {:g} s. Was it started (`trireme serve`, or by "
          "a launcher with --servers), for the same job?",
          worker_, server, deadline.limit().count());
    std::this_thread::sleep_for(pause);  // nothing signals the birth of an abstract socket
  }
}

/// The servers' memory in the place of a copy, if there is one memory for all servers.
void Client::look_in_place() {
  for (const Line& line : lines_) {
    const auto* local = dynamic_cast<const shm::Lane*>(line.lane.get());
    if (local == nullptr || !local->shared()) return;
  }
  const size_t bytes = round_up(std::max<size_t>(1, job_.layout.bytes()), kPage);
  shared_parameters_ = dynamic_cast<shm::Lane&>(*lines_[0].lane).open_parameters(bytes);
  parameters_ = shared_parameters_->map(0, bytes, "the servers' parameters");
  in_place_ = true;
}

Client::~Client() {
  const bool failed = std::uncaught_exceptions() > 0, silent = failed || !timed_out_.empty();
  const uint8_t flags = !failed ? 0 : victim_ ? kVictim : kFailed;
  try {
    const auto goodbye = std::make_shared<Operation>();
    for (size_t server = 0; server < lines_.size(); server++)
      send(server, {.verb = Verb::leave, .flags = flags}, goodbye, {});
    // Servers go when the last worker has said goodbye: what looks like a death now is none.
    wait_until(patience_, Deadline(silent ? kShortGoodbye : kGoodbye), [&] { return progress(), goodbye->left == 0; });
  } catch (const Error&) {  // it is gone already
  }
}

std::string Client::lanes() const {
  const auto local = std::count_if(lines_.begin(), lines_.end(), [](const Line& line) { return line.lane->local(); });
  if (local == static_cast<ptrdiff_t>(lines_.size())) return "shared memory";
  return local == 0 ? "gRPC" : "shared memory and gRPC";
}

void Client::interrupt(const std::string& reason) noexcept { alarm_->raise(reason); }

// ---- a server that is gone, and another one in its place ----

/// Until it is ready, somebody is gone who has no stand-in, or time is up. Whether it is ready.
template <class Ready>
bool Client::wait_until(Patience& patience, const Deadline& deadline, const Ready& ready) {
  while (true) {
    bool done = false;
    await(memory_->bell(), patience, deadline, [&] { return (done = ready()) || alarm_->raised.load(); });
    if (done) return true;
    if (!alarm_->raised.load() || !fail_over()) return false;
  }
}

/// With replicas: every lane whose server is gone leads to the one that answers now. False where somebody else is gone,
/// or there are none.
bool Client::fail_over() {
  if (job_.replicas == 0) return false;
  alarm_->calm();
  if (alarm_->raised.load()) return false;
  bool changed = false;
  for (size_t shard = 0; shard < lines_.size(); shard++) {
    Line& line = lines_[shard];
    if (line.lane->fault().empty()) continue;
    progress();  // what the old one has answered is so
    std::string said;
    auto lane = other_server_for(line, shard, Deadline(limit_.timeout), said);
    if (!lane) {
      victim_ = true;
      fail<PeerLost>("{}, and no other server has its part of the parameters{}; worker {} cannot go on",
                     line.lane->fault(), said, worker_);
    }
    line.lane = std::move(lane);
    send_again(line);
    changed = true;
  }
  if (changed) watch_servers();
  return true;
}

/// A lane to the server that answers for a shard, now that the one that did is gone: none where nobody does. A backup
/// that has not seen its primary go is asked again.
std::unique_ptr<Lane> Client::other_server_for(Line& line, size_t shard, const Deadline& deadline, std::string& said) {
  for (auto pause = std::chrono::milliseconds(1);; pause = std::min(pause * 2, std::chrono::milliseconds(20))) {
    bool soon = false;
    said.clear();
    for (int server : whom_to_ask(job_.servers, line.server, line.backup)) try {
        if (auto lane = try_server(line, shard, server, deadline)) return lane;
      } catch (const shm::Elsewhere& error) {
        said += fmt::format("; {}", error.what());
        soon |= error.when == shm::Elsewhere::soon;
      } catch (const PeerLost& error) {  // it has just gone, too
        said += fmt::format("; {}", error.what());
      }
    if (!soon || deadline.passed()) return nullptr;
    std::this_thread::sleep_for(pause);  // nobody tells a worker what servers find out
  }
}

std::unique_ptr<Lane> Client::try_server(Line& line, size_t shard, int server, const Deadline& deadline) {
  Descriptor socket = shm::Lane::knock(meeting_.job, server);
  if (!socket) return nullptr;
  const auto servers = static_cast<size_t>(job_.servers);
  const size_t place = (line.place + servers) % (2 * servers);
  memory_->line(place).clear();
  auto lane = std::make_unique<shm::Lane>(std::move(socket), memory_,
                                          shm::Way{.model = options_.model,
                                                   .worker = worker_,
                                                   .server = server,
                                                   .shard = static_cast<int>(shard),
                                                   .line = place,
                                                   .replicas = job_.replicas,
                                                   .epoch = line.epoch},
                                          deadline);
  line.server = server;
  line.place = place;
  line.epoch = lane->epoch();
  line.backup = lane->backup();
  return lane;
}

/// What has no answer, in the order in which it was asked: the server knows what it has seen before.
void Client::send_again(Line& line) {
  std::vector<const Line::Open*> all;
  for (const auto& [id, open] : line.open) all.push_back(&open);
  std::sort(all.begin(), all.end(),
            [](const Line::Open* a, const Line::Open* b) { return a->request.id < b->request.id; });
  for (const Line::Open* open : all)
    line.lane->send(open->request, open->load.data, open->load.present, open->load.urgency);
}

// ---- sending and waiting ----

void Client::send(size_t server, Request request, const std::shared_ptr<Operation>& operation, Load load) {
  Line& line = lines_[server];
  if (line.open.size() >= kMostOpen) {
    if (!wait_until(patience_, Deadline(limit_.timeout), [&] { return progress(), line.open.size() < kMostOpen; }))
      give_up(alarm_->raised.load(), "room for another request");
  }
  request.id = line.next_id++;
  operation->left++;
  const Line::Open& open = line.open.emplace(request.id, Line::Open{operation, request, std::move(load)}).first->second;
  line.lane->send(request, open.load.data, open.load.present, open.load.urgency);
}

/// All answers that are there.
void Client::progress() {
  Reply reply;
  std::string text;
  for (Line& line : lines_)
    while (line.lane->receive(reply, text)) take_answer(line, reply, text);
}

void Client::take_answer(Line& line, const Reply& reply, const std::string& text) {
  const auto found = line.open.find(reply.id);
  if (found == line.open.end()) return;  // answered twice: it was sent twice
  const auto operation = std::move(found->second.operation);
  const Done done = std::move(found->second.load.done);
  line.open.erase(found);
  operation->left--;
  operation->version = std::min(operation->version, reply.version);
  operation->changed |= reply.status == Status::ok;
  operation->flawed |= reply.flawed != 0;
  operation->last = reply;
  if (reply.status >= Status::invalid && operation->failed == Status::ok) {
    operation->failed = reply.status;
    operation->error = text;
  } else if (!text.empty()) {
    operation->text = text;
  }
  if (done) done(reply);
}

std::string Client::fault() {
  if (std::string reason = alarm_->text(); !reason.empty()) return reason;
  for (Line& line : lines_)
    if (std::string fault = line.lane->fault(); !fault.empty()) return fault;
  return "";
}

/// Somebody is gone, or time is up. Returns where neither is so.
void Client::give_up(bool in_time, const char* what, const Operation* operation) {
  victim_ = true;
  if (const std::string why = fault(); !why.empty()) fail<PeerLost>("{}; worker {} waited for {}", why, worker_, what);
  victim_ = false;
  if (in_time) return;
  const auto belongs = [&](const auto& entry) {
    return operation == nullptr || entry.second.operation.get() == operation;
  };
  std::string reason;
  const Line* silent = nullptr;
  for (Line& line : lines_) {
    if (!reason.empty() || std::none_of(line.open.begin(), line.open.end(), belongs)) continue;
    if (silent == nullptr) silent = &line;
    reason = explain(line, operation);
  }
  if (reason.empty() && silent != nullptr)
    reason = fmt::format("{} does not answer: it is stopped, or too busy", silent->lane->name());
  timed_out_ = fmt::format("{}: worker {} has waited {:g} s for {}{}", reason, worker_, limit_.timeout.count(), what,
                           longer_helps(limit_.setting));
  throw Timeout(timed_out_);
}

/// What a server says of the first request that it has not answered; "" when it says nothing.
std::string Client::explain(Line& line, const Operation* operation) {
  uint64_t first = ~uint64_t{0};
  for (const auto& [id, entry] : line.open)
    if (operation == nullptr || entry.operation.get() == operation) first = std::min(first, id);
  const auto question = std::make_shared<Operation>();
  const Request request{.id = line.next_id++, .verb = Verb::explain, .version = first};
  question->left = 1;
  line.open.emplace(request.id, Line::Open{question, request, {}});
  line.lane->send(request, {}, {}, 0);
  await(memory_->bell(), patience_, Deadline(kExplanation),
        [&] { return progress(), question->left == 0 || alarm_->raised.load(); });
  if (question->left == 0 && question->text.empty()) return fmt::format("{} has just answered", line.lane->name());
  return question->text;
}

/// One wake-up for all answers of a line.
void Client::expect(const Operation& operation) {
  for (Line& line : lines_) {
    const auto count = std::count_if(line.open.begin(), line.open.end(),
                                     [&](const auto& entry) { return entry.second.operation.get() == &operation; });
    line.lane->expect(static_cast<size_t>(std::max<ptrdiff_t>(1, count)));
  }
}

/// Who waits for a long pass gives its core to the server's helper: by yielding to it, or, where the pass takes much
/// longer than waking up does, by sleeping.
Patience& Client::patience_with(const Operation& operation) {
  if (!lends_ || operation.bytes < Helpers::kLong) return patience_;
  return operation.bytes <= kYieldBytes ? lending_ : asleep_;
}

void Client::wait_for(const Operation& operation) {
  if (operation.left > 0) progress();
  if (operation.left > 0 && !timed_out_.empty()) throw Timeout(timed_out_);
  const Deadline deadline(limit_.timeout);
  while (operation.left > 0) {
    const bool several = operation.left > 1;
    if (several) expect(operation);
    const bool came = wait_until(patience_with(operation), deadline, [&] { return progress(), operation.left == 0; });
    for (Line& line : lines_)
      if (several) line.lane->expect(1);
    if (!came) give_up(alarm_->raised.load(), operation.what, &operation);
  }
  victim_ = operation.failed == Status::peer_lost;
  if (victim_) fail<PeerLost>("{}; worker {} waited for {}", operation.error, worker_, operation.what);
  if (operation.failed == Status::mismatch) throw Mismatch(operation.error);
  if (operation.failed != Status::ok) throw InvalidArgument(operation.error);
}

Reply Client::ask(size_t server, Request request, const char* what) {
  const auto operation = std::make_shared<Operation>();
  operation->what = what;
  send(server, request, operation, {});
  wait_for(*operation);
  return operation->last;
}

bool Pending::ready() const {
  if (!operation_ || operation_->left == 0) return true;
  client_->progress();
  return operation_->left == 0;
}

void Pending::wait() const {
  if (operation_) client_->wait_for(*operation_);
}

uint64_t Pending::version() const { return operation_ ? operation_->version : 0; }
bool Pending::sound() const { return !operation_ || !operation_->flawed; }
bool Pending::changed() const { return operation_ && operation_->changed; }

// ---- dense ----

bool Client::is_local(const Chunk& chunk) const { return lines_[static_cast<size_t>(chunk.server)].lane->local(); }

Pending Client::send_range(space::Range range, Request request, const char* what, const Encode& encode) {
  const auto flags_of_all = request.flags;
  const auto operation = std::make_shared<Operation>();
  operation->what = what;
  const auto first = std::partition_point(by_place_.begin(), by_place_.end(),
                                          [&](uint32_t index) { return chunks_[index].range.end <= range.begin; });
  for (auto at = first; at != by_place_.end() && chunks_[*at].range.begin < range.end; ++at) {
    const Chunk& chunk = chunks_[*at];
    const space::Range part = intersect(range, chunk.range);
    request.chunk = chunk.index;
    request.begin = part.begin;
    request.bytes = part.size();
    const std::byte* source = request.verb == Verb::push  ? gradients()
                              : request.verb == Verb::set ? parameters()
                                                          : nullptr;
    std::span<const std::byte> data =
        source == nullptr ? std::span<const std::byte>() : std::span(source + part.begin, part.size());
    const std::span<const uint8_t> flags =
        request.verb == Verb::push ? std::span<const uint8_t>(present() + chunk.first, chunk.last - chunk.first)
                                   : std::span<const uint8_t>();
    request.flags = flags_of_all;
    request.extra = 0;
    if (encode && !is_local(chunk)) {
      data = encode(chunk);
      request.flags |= kCoded;
      request.extra = data.size();
    }
    if ((request.flags & kInPlace) == 0 && is_local(chunk)) operation->bytes += part.size();
    send(static_cast<size_t>(chunk.server), request, operation, {data, flags, static_cast<uint32_t>(chunk.first)});
  }
  return {this, operation};
}

Pending Client::push(space::Range range, const PushOptions& options) {
  uint8_t flags = options.pull && !in_place_ ? kAnswerWithParameters : uint8_t{0};
  if (options.watch) flags |= kWatch;
  if (options.hold) flags |= kHold;
  return send_range(range, {.verb = Verb::push, .flags = flags, .step = options.step, .lr = options.lr},
                    "its gradients to be applied", options.encode);
}

double Client::squares() {
  double sum = 0;
  for (size_t server = 0; server < lines_.size(); server++)
    sum += std::bit_cast<double>(ask(server, {.verb = Verb::norm}, "the norm of the gradients").value);
  return sum;
}

Pending Client::apply(double factor) {
  const auto operation = std::make_shared<Operation>();
  operation->what = "the gradients to be applied";
  for (size_t server = 0; server < lines_.size(); server++)
    send(server, {.verb = Verb::apply, .lr = factor}, operation, {});
  return {this, operation};
}

Pending Client::pull(space::Range range, const PullOptions& options) {
  return send_range(range,
                    {.verb = Verb::pull,
                     .flags = in_place_ ? kInPlace : uint8_t{0},
                     .step = options.since,
                     .version = options.at_least},
                    "parameters");
}

Pending Client::set(space::Range range) {
  return send_range(range, {.verb = Verb::set, .flags = in_place_ ? kInPlace : uint8_t{0}},
                    "its parameters to be taken");
}

// ---- clocks, work, locks: server 0 keeps them ----

void Client::barrier() { ask(0, {.verb = Verb::barrier}, "all workers to come to a barrier"); }

bool Client::begin(int64_t step, bool stop) {
  return ask(0, {.verb = Verb::begin, .flags = stop ? kStop : uint8_t{0}, .step = step}, "leave to begin a step")
             .status == Status::ok;
}

Lease Client::take(int64_t epoch, int64_t first_step, int64_t pieces, int64_t pieces_per_step, bool stop) {
  const Reply reply = ask(0,
                          {.verb = Verb::take,
                           .flags = stop ? kStop : uint8_t{0},
                           .step = first_step,
                           .version = static_cast<uint64_t>(epoch),
                           .bytes = static_cast<uint64_t>(pieces),
                           .extra = static_cast<uint64_t>(pieces_per_step)},
                          "a piece of work");
  if (reply.status != Status::ok) return {reply.status == Status::stopped ? Lease::stopped : Lease::end};
  return {Lease::piece, first_step + reply.value / pieces_per_step, reply.value};
}

bool Client::lock(bool tries) {
  return ask(0, {.verb = Verb::lock, .flags = tries ? uint8_t{0} : kSkip}, "the update lock").status == Status::ok;
}

void Client::unlock() { ask(0, {.verb = Verb::unlock}, "the update lock to be released"); }

std::vector<metrics::Snapshot> Client::counted() {
  std::vector<metrics::Snapshot> all;
  for (size_t server = 0; server < lines_.size(); server++) {
    const auto operation = std::make_shared<Operation>();
    operation->what = "a server's counters";
    send(server, {.verb = Verb::status}, operation, {});
    wait_for(*operation);
    all.push_back(metrics::Snapshot::decode(operation->text));
  }
  return all;
}

// ---- sparse ----

/// A place in the staging area; waits for earlier sparse requests when it is full.
size_t Client::stage(size_t bytes) {
  bytes = round_up(bytes, 64);
  const size_t room = memory_->plot().staging_bytes;
  if (bytes > room)
    fail<InvalidArgument>(
        "{} bytes of keys and rows in one request; there is room for {}: use smaller batches or a larger staging area",
        bytes, room);
  if (staged_ + bytes > room) {
    if (!wait_until(patience_, Deadline(limit_.timeout), [&] { return progress(), sparse_open_ == 0; }))
      give_up(alarm_->raised.load(), "room for keys");
  }
  if (sparse_open_ == 0) staged_ = 0;
  return std::exchange(staged_, staged_ + bytes);
}

Pending Client::send_rows(Verb verb, size_t table, std::span<const uint64_t> keys, const float* gradients, float* rows,
                          double lr) {
  if (table >= job_.tables.size())
    fail<InvalidArgument>("there is no table {}; the job has {}", table, job_.tables.size());
  const auto operation = std::make_shared<Operation>();
  operation->what = verb == Verb::sparse_push ? "rows to be updated" : "rows";
  const size_t width = job_.tables[table].width, servers = lines_.size();
  for (size_t server = 0; server < servers; server++) {
    auto places = std::make_shared<std::vector<uint32_t>>();  // of this server's keys among all; empty: all of them are
    size_t count = keys.size();
    if (servers > 1) {
      for (size_t i = 0; i < keys.size(); i++)
        if (server_of_key(keys[i], servers) == server) places->push_back(static_cast<uint32_t>(i));
      count = places->size();
    }
    if (count == 0) continue;
    const size_t key_bytes = count * sizeof(uint64_t), row_bytes = count * width * sizeof(float);
    const size_t begin = stage(key_bytes + row_bytes);
    std::byte* at = memory_->staging() + begin;
    float* staged = reinterpret_cast<float*>(at + key_bytes);
    if (servers == 1) {
      std::memcpy(at, keys.data(), key_bytes);
      if (gradients != nullptr) std::memcpy(staged, gradients, row_bytes);
    }
    for (size_t i = 0; i < places->size(); i++) {
      std::memcpy(at + i * sizeof(uint64_t), &keys[(*places)[i]], sizeof(uint64_t));
      if (gradients != nullptr)
        std::memcpy(staged + i * width, gradients + (*places)[i] * width, width * sizeof(float));
    }
    Request request{.verb = verb,
                    .table = static_cast<uint16_t>(table),
                    .lr = lr,
                    .version = count,
                    .begin = begin,
                    .bytes = key_bytes};
    if (verb == Verb::sparse_push) request.bytes += row_bytes;
    if (verb == Verb::sparse_pull) request.extra = begin + key_bytes;
    sparse_open_++;
    send(server, request, operation,
         {.data = {at, request.bytes}, .done = [this, places, staged, rows, width, row_bytes](const Reply& reply) {
            sparse_open_--;
            if (rows == nullptr || reply.status != Status::ok) return;
            if (places->empty()) return void(std::memcpy(rows, staged, row_bytes));
            for (size_t i = 0; i < places->size(); i++)
              std::memcpy(rows + (*places)[i] * width, staged + i * width, width * sizeof(float));
          }});
  }
  return {this, operation};
}

Pending Client::pull_rows(size_t table, std::span<const uint64_t> keys, float* rows) {
  return send_rows(Verb::sparse_pull, table, keys, nullptr, rows, 0);
}

Pending Client::push_rows(size_t table, std::span<const uint64_t> keys, const float* gradients, double lr) {
  return send_rows(Verb::sparse_push, table, keys, gradients, nullptr, lr);
}

}  // namespace trireme::ps
