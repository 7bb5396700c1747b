#include <fmt/format.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/stat.h>

#include <algorithm>
#include <cstring>

#include <trireme/base/error.h>
#include <trireme/base/unix_socket.h>
#include <trireme/ps/copy.h>
#include <trireme/ps/shm/door.h>
#include <trireme/ps/shm/incoming.h>
#include <trireme/ps/shm/replica.h>

namespace trireme::ps::shm {
namespace {

constexpr Seconds kForBackup{1};    // for an answer of a server that is asked to be the backup
constexpr int kRecordsAtOnce = 64;  // before the other replicas' turn
constexpr double kCopied = 100e6;   // bytes per second that the slowest backup takes of a copy

std::string name_of_worker(int worker, pid_t process) { return fmt::format("worker {} (process {})", worker, process); }

/// What changes nothing is not written down. The answer to `explain` is about now and here.
bool changes(Verb verb) {
  return verb != Verb::status && verb != Verb::explain && verb != Verb::norm && verb != Verb::show_state &&
         verb != Verb::show_rows;
}

uint64_t bytes_of_file(int descriptor) {
  struct stat file {};
  return fstat(descriptor, &file) == 0 ? static_cast<uint64_t>(file.st_size) : 0;
}

}  // namespace

/// The primary's end of a log.
struct Replica::Leading {
  int server = kNobody;
  Descriptor socket;
  std::shared_ptr<Segment> memory, bell_memory;
  Log* log = nullptr;
  Bell* bell = nullptr;         // the backup's
  std::deque<Record> overflow;  // for which the log has no room yet
  std::unique_ptr<Watch> watch;
};

/// A worker as the backup sees it: its memory, and no line to it.
struct Replica::Shadow final : Connection {
  Shadow(Memory of_worker, pid_t process) : memory(std::move(of_worker)), process(process) {}
  void reply(const Reply& /*reply*/, std::span<const std::byte> /*data*/) override {}
  std::string name() const override { return name_of_worker(worker, process); }
  const Memory memory;
  const pid_t process;
};

Replica::Replica(Models& models, const Charge& charge, const Surroundings& around)
    : models_(models), charge_(charge), around_(around), unsuited_(static_cast<size_t>(around.servers)) {}

Replica::~Replica() = default;

bool Replica::finished() const { return !fault_.empty() || (models_.finished() && held_.empty()); }

std::string Replica::describe() const {
  if (!fault_.empty()) return fmt::format("part {}: no longer here: {}", charge_.shard, fault_);
  const std::string head = fmt::format("part {}: epoch {}, ", charge_.shard, charge_.epoch);
  if (following_)
    return fmt::format("{}{} of server {}, {} events", head,
                       leads()                            ? "primary"
                       : charge_.backup == around_.server ? "backup"
                                                          : "being filled",
                       charge_.primary, following_->log->applied.load());
  if (!leading_ && silent_ != kNobody)
    return fmt::format("{}primary, without a backup: server {} has carried out nothing for {:g} s", head, silent_,
                       around_.silence.count());
  if (!leading_) return head + "primary, without a backup";
  const uint64_t applied = leading_->log->applied.load();
  return fmt::format("{}primary, backup on server {}{}, {} events behind", head, leading_->server,
                     charge_.backup == kNobody ? " (being filled)" : "", order_ - applied);
}

// ---- the primary ----

Models::Admission Replica::open(const std::shared_ptr<Port>& port, int model, int worker) {
  const Memory& memory = port->memory();
  if (leading_) {
    const Aside aside{
        .event = Event::open, .model = model, .worker = worker, .process = port->process(), .plot = memory.plot()};
    append({.event = Event::open, .model = model, .worker = worker}, &aside, memory.segment().descriptor());
  }
  auto admission = models_.open(model, worker, std::string(memory.job(), memory.plot().job_bytes));
  if (admission.refusal.empty()) workers_[{model, worker}] = {std::make_shared<Memory>(memory), port->process()};
  return admission;
}

void Replica::handle(const std::shared_ptr<Port>& port, const Request& request, Clock::time_point now) {
  Service& service = *port->service;
  if (request.verb == Verb::explain)
    if (const std::string why = why_held(*port, request.version); !why.empty())
      return port->reply({.id = request.id, .verb = request.verb, .bytes = why.size()},
                         std::as_bytes(std::span(why.data(), why.size())));
  if (leading_ && changes(request.verb))
    append({.event = Event::request,
            .model = service.model(),
            .worker = port->worker,
            .now = now.time_since_epoch().count(),
            .request = request});
  service.handle(incoming_of(port, request, port->memory()), now);
}

void Replica::lost(int worker, const std::string& how) {
  Service* service = models_.where(worker);
  if (service == nullptr) return;
  append({.event = Event::lost, .model = service->model(), .worker = worker});
  models_.lost(*service, worker, how);
}

void Replica::tick(Clock::time_point now) {
  check_backup(now);
  if (const auto due = models_.due(); !due || *due > now) return;
  append({.event = Event::tick, .now = now.time_since_epoch().count()});
  models_.tick(now);
}

std::optional<Clock::time_point> Replica::due() const {
  const auto first = leads() ? models_.due() : std::nullopt, silence = silence_ends();
  return first && silence ? std::min(first, silence) : first ? first : silence;
}

/// When the backup has to have done something.
std::optional<Clock::time_point> Replica::silence_ends() const {
  if (!leading_) return std::nullopt;
  const uint64_t applied = leading_->log->applied.load();
  if (applied >= order_) return std::nullopt;
  const Seconds patience = applied < copied_ ? around_.silence + for_copy_ : around_.silence;
  return moved_ + std::chrono::duration_cast<Clock::duration>(patience);
}

/// One that is stopped would keep all answers from all workers.
void Replica::check_backup(Clock::time_point now) {
  if (const auto end = silence_ends(); !end || now < *end) return;
  if (const uint64_t applied = leading_->log->applied.load(); applied != seen_) {
    seen_ = applied;
    moved_ = now;
    return;
  }
  silent_ = leading_->server;
  backup_gone(logs_);
}

/// For an answer that is there and waits for the backup.
std::string Replica::why_held(const Port& port, uint64_t id) const {
  const bool held = std::any_of(held_.begin(), held_.end(),
                                [&](const Held& one) { return one.port.get() == &port && one.reply.id == id; });
  if (!held || !leading_) return "";
  return fmt::format("server {} waits for its backup, server {}, which is {} events behind: it is stopped, or too busy",
                     around_.server, leading_->server, order_ - leading_->log->applied.load());
}

std::string Replica::control(const std::string& words) {
  const std::string told = models_.control(words);  // throws what nobody else needs to hear
  Aside aside{.event = Event::control};
  std::strncpy(aside.words.data(), words.c_str(), aside.words.size() - 1);
  append({.event = Event::control}, &aside);
  return told;
}

void Replica::append(Record record, const Aside* aside, int descriptor) {
  if (!leading_) return;
  if (aside != nullptr && !(descriptor >= 0 ? send_message(leading_->socket.get(), aside, sizeof *aside, {descriptor})
                                            : send_message(leading_->socket.get(), aside, sizeof *aside)))
    return backup_gone(logs_);
  if (leading_->log->applied.load() == order_) {
    seen_ = order_;
    moved_ = Clock::now();
  }
  record.order = ++order_;
  if (!leading_->overflow.empty() || !leading_->log->records.push(record)) leading_->overflow.push_back(record);
  ring(*leading_->bell);
}

/// Held as long as somebody reads along: one that is being filled reads the worker's memory too.
void Replica::answer(const std::shared_ptr<Port>& port, const Reply& reply) {
  if (leading_ && !answers_in_words(reply.verb))
    held_.push_back({order_, port, reply});
  else
    port->send(reply);
}

void Replica::send_due() {
  const uint64_t applied = leading_ ? leading_->log->applied.load() : order_;
  while (!held_.empty() && (held_.front().order <= applied || !leading_)) {
    const Held held = std::move(held_.front());
    held_.pop_front();
    held.port->send(held.reply);
  }
}

void Replica::find_backup(const Deadline* deadline) {
  if (!leads() || leading_ || models_.finished()) return;
  std::vector<bool> lives = unsuited_;
  lives.flip();
  lives[static_cast<size_t>(around_.server)] = false;
  if (silent_ != kNobody) lives[static_cast<size_t>(silent_)] = false;
  const bool anew = models_.empty();
  if (anew && deadline != nullptr) {  // at the job's start the others are about to come
    const int server = charge_.backup;
    while (!try_backup(server, true)) {
      if (deadline->passed())
        fail<Timeout>("server {} found no server {} of its job on this machine within {:g} s to be its backup",
                      around_.server, server, deadline->limit().count());
      std::this_thread::sleep_for(std::chrono::milliseconds(2));  // nothing signals the birth of an abstract socket
    }
    return;
  }
  while (true) {
    const Move move = appoint(charge_, lives);
    if (move.why != Move::Why::appointed) return;
    if (!try_backup(move.server, false)) {
      lives[static_cast<size_t>(move.server)] = false;
      continue;
    }
    charge_ = move.charge;
    silent_ = kNobody;
    return fill();
  }
}

/// `anew`: nothing has happened yet. It is told what to be, and where the log is; its door answers at once.
bool Replica::try_backup(int server, bool anew) {
  Descriptor socket = open_unix_socket();
  if (!connect_to(socket.get(), door_name(around_.job, server)) || !same_user(socket.get())) return false;
  limit_wait(socket.get(), kForBackup);
  auto leading = std::make_unique<Leading>();
  const size_t bytes = round_up(sizeof(Log), kPage);
  leading->memory = Segment::create(bytes);
  leading->log = reinterpret_cast<Log*>(leading->memory->map(0, bytes, "the log of a shard"));
  const Hello hello{.kind = Visitor::primary,
                    .worker = around_.server,
                    .shard = charge_.shard,
                    .line = anew ? 0u : 1u,
                    .epoch = charge_.epoch};
  Welcome answer;
  std::vector<Descriptor> descriptors;
  if (!send_message(socket.get(), &hello, sizeof hello, {leading->memory->descriptor(), around_.bell->descriptor()}) ||
      receive_message(socket.get(), &answer, sizeof answer, descriptors) != sizeof answer || answer.magic != kMagic ||
      answer.welcome == 0 || descriptors.size() != 1) {
    leading->log->dropped.store(1);
    return false;
  }
  leading->server = server;
  leading->bell_memory = std::make_shared<Segment>(std::move(descriptors[0]), kPage);
  leading->bell = reinterpret_cast<Bell*>(leading->bell_memory->map(0, kPage, "a backup's bell"));
  leading->socket = std::move(socket);
  leading->watch =
      std::make_unique<Watch>("trireme-backup", std::vector{leading->socket.get()},
                              [this, log = ++logs_](size_t) { around_.post([this, log] { backup_gone(log); }); });
  leading_ = std::move(leading);
  order_ = 0;
  return true;
}

/// What it had not carried out is acknowledged without it.
void Replica::backup_gone(uint64_t log) {
  if (!leading_ || log != logs_) return;
  leading_->log->dropped.store(1);  // it may live, and must not answer
  unsuited_[static_cast<size_t>(leading_->server)] = leading_->log->given_up.load() != 0;
  charge_ = after_death(charge_, leading_->server).charge;
  leading_.reset();
  send_due();
  find_backup();
}

/// All that there is, in memory of its own: the backup takes it before it carries out anything else.
void Replica::fill() {
  std::erase_if(workers_, [&](const auto& entry) { return !models_.here(entry.first.first, entry.first.second); });
  for (const auto& [place, worker] : workers_) {
    const auto& [memory, process] = worker;
    const Aside aside{
        .event = Event::open, .model = place.first, .worker = place.second, .process = process, .plot = memory->plot()};
    append({.event = Event::open, .model = place.first, .worker = place.second}, &aside,
           memory->segment().descriptor());
  }
  CopyWriter all;
  models_.copy_to(all);
  const size_t bytes = round_up(std::max<size_t>(1, all.bytes().size()), kPage);
  const std::shared_ptr<Segment> memory = Segment::create(bytes);
  std::memcpy(memory->map(0, bytes, "the copy of a shard"), all.bytes().data(), all.bytes().size());
  const Aside aside{.event = Event::fill, .bytes = all.bytes().size()};
  append({.event = Event::fill}, &aside, memory->descriptor());
  copied_ = order_;
  for_copy_ = Seconds(static_cast<double>(bytes) / kCopied);
  append({.event = Event::filled});
  if (leading_) charge_ = filled(charge_).charge;
}

void Replica::newcomer(int server) {
  unsuited_[static_cast<size_t>(server)] = false;
  if (silent_ == server) silent_ = kNobody;
  find_backup();
}

// ---- the backup ----

void Replica::take_copy(const Aside& aside, std::vector<Descriptor> descriptors) {
  if (descriptors.size() != 1 || aside.bytes > bytes_of_file(descriptors[0].get()))
    fail<PeerLost>("the copy of part {} did not come", charge_.shard);
  const size_t bytes = round_up(std::max<size_t>(1, aside.bytes), kPage);
  Segment memory(std::move(descriptors[0]), bytes);
  CopyReader all({memory.map(0, bytes, "the copy of a shard"), aside.bytes});
  models_.copy_from(all, [this](int model, int worker, const Request& request) {
    const auto found = shadows_.find({model, worker});
    if (found == shadows_.end())
      fail<PeerLost>("the copy of part {} has a request of a worker that has left", charge_.shard);
    return incoming_of(found->second, request, found->second->memory);
  });
}

void Replica::follow(std::shared_ptr<Following> following, const Charge& charge) {
  charge_ = charge;
  following_ = std::move(following);
}

bool Replica::waiting() const {
  if (following_ && fault_.empty())
    return following_->log->records.written.load() != following_->log->records.read.load(std::memory_order_relaxed);
  if (!leading_) return false;
  return (!held_.empty() && held_.front().order <= leading_->log->applied.load()) ||
         (!leading_->overflow.empty() && leading_->log->records.has_room());
}

bool Replica::look_after() {
  if (!waiting()) return false;
  if (leading_) {
    auto& overflow = leading_->overflow;
    while (!overflow.empty() && leading_->log->records.push(overflow.front())) overflow.pop_front();
    ring(*leading_->bell);
    send_due();
    return true;
  }
  Record record;
  for (int i = 0; i < kRecordsAtOnce && fault_.empty() && following_->log->records.pop(record); i++) replay(record);
  return true;
}

Aside Replica::receive_aside(const Record& record, std::vector<Descriptor>& descriptors) {
  Aside aside;
  if (receive_message(following_->socket.get(), &aside, sizeof aside, descriptors) != sizeof aside ||
      aside.magic != kMagic || aside.event != record.event)
    fail<PeerLost>("what came beside the log of part {} is not what it announced", charge_.shard);
  aside.words.back() = 0;
  return aside;
}

void Replica::open_shadow(const Aside& aside, std::vector<Descriptor> descriptors) {
  if (descriptors.size() != 1 || !aside.plot.fits(bytes_of_file(descriptors[0].get())))
    fail<PeerLost>("a worker came to part {} without its memory", charge_.shard);
  const Memory memory(std::make_shared<Segment>(std::move(descriptors[0]), aside.plot.total), aside.plot);
  const auto shadow = std::make_shared<Shadow>(memory, aside.process);
  auto [service, refusal] = models_.open(aside.model, aside.worker, std::string(memory.job(), memory.plot().job_bytes));
  if (!refusal.empty()) return;
  shadow->worker = aside.worker;
  shadow->service = service;
  shadows_[{aside.model, aside.worker}] = shadow;
}

/// What the primary did, in the same order.
void Replica::replay(const Record& record) try {
  const Clock::time_point now{Clock::duration(record.now)};
  const auto found = shadows_.find({record.model, record.worker});
  std::vector<Descriptor> descriptors;
  if (record.order != following_->log->applied.load() + 1)
    fail<Corruption>("the log of part {} goes on with event {} after event {}", charge_.shard, record.order,
                     following_->log->applied.load());
  if (record.now < 0 || record.now > int64_t{1} << 62)
    fail<Corruption>("the log of part {} has no time", charge_.shard);
  switch (record.event) {
    case Event::open: {
      const Aside aside = receive_aside(record, descriptors);
      open_shadow(aside, std::move(descriptors));
      break;
    }
    case Event::request: {
      if (found == shadows_.end()) break;  // it had left
      const std::shared_ptr<Shadow> shadow = found->second;
      shadow->service->handle(incoming_of(shadow, record.request, shadow->memory), now);
      if (!shadow->service->here(record.worker)) shadows_.erase({record.model, record.worker});
      break;
    }
    case Event::lost:
      if (found == shadows_.end()) break;
      models_.lost(*found->second->service, record.worker, fmt::format("{} died", found->second->name()));
      break;
    case Event::tick:
      models_.tick(now);
      break;
    case Event::control:
      models_.control(receive_aside(record, descriptors).words.data());
      break;
    case Event::fill: {
      const Aside aside = receive_aside(record, descriptors);
      take_copy(aside, std::move(descriptors));
      break;
    }
    case Event::filled:
      charge_ = ps::filled(charge_).charge;
      break;
    default:
      fail<Corruption>("the log of part {} has an event of an unknown kind, {}", charge_.shard,
                       static_cast<uint32_t>(record.event));
  }
  following_->log->applied.store(record.order);
  ring(*following_->bell);
} catch (const Error& error) {
  give_up(error.what());
}

/// This server cannot go on as the backup: it must never answer for the shard. The primary sees the socket's end.
void Replica::give_up(const std::string& why) {
  fault_ = why;
  following_->log->given_up.store(1);
  shutdown(following_->socket.get(), SHUT_RDWR);
  shadows_.clear();
}

void Replica::primary_gone(const Following* following) {
  if (following_.get() != following || !fault_.empty()) return;
  while (look_after()) continue;
  if (!fault_.empty()) return;
  if (following_->log->dropped.load() != 0) {
    left_behind_ = true;
    return give_up("its primary goes on without it");
  }
  if (charge_.backup != around_.server) return give_up("its primary was gone before all was here");
  charge_ = after_death(charge_, charge_.primary).charge;
  following_.reset();
  for (const auto& [place, shadow] : std::exchange(shadows_, {}))
    workers_[place] = {std::make_shared<Memory>(shadow->memory), shadow->process};
  find_backup();
}

}  // namespace trireme::ps::shm
