#include <grpcpp/ext/health_check_service_server_builder_option.h>
#include <grpcpp/health_check_service_interface.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <deque>
#include <numeric>
#include <thread>

#include <trireme/base/error.h>
#include <trireme/base/lock.h>
#include <trireme/base/process.h>
#include <trireme/cluster/control_door.h>
#include <trireme/cluster/coordination/control.h>
#include <trireme/cluster/coordination/coordinator.h>
#include <trireme/cluster/coordination/member_metrics.h>
#include <trireme/cluster/coordination/reach.h>
#include <trireme/cluster/journal/file.h>
#include <trireme/cluster/status_door.h>

#include "wire.h"

namespace trireme::cluster {
namespace {

constexpr Seconds kReturn{5};

/// The stream of one member. gRPC calls the On… functions, one at a time except OnCancel; the desk calls the others.
class Attendance final : public grpc::ServerBidiReactor<wire::FromMember, wire::ToMember>, public Line {
 public:
  Attendance(std::shared_ptr<Desk> desk, const grpc::CallbackServerContext& context)
      : desk_(std::move(desk)), token_(token_of(context)), address_(address_of(context.peer())) {}

  /// It lives until gRPC has done with it, whoever else holds it.
  void start(std::shared_ptr<Attendance> self) {
    self_ = std::move(self);
    if (desk_->knows(token_)) return StartRead(&incoming_);
    close(desk_->token_refusal());
  }

  void OnReadDone(bool ok) override {
    if (!ok) return end();
    uint64_t member = member_;
    serve(*desk_, token_, incoming_, address_, member, self_);
    if (member_.exchange(member) == 0 && cancelled_) desk_->disconnected(member, this);
    StartRead(&incoming_);
  }
  void OnCancel() override {
    cancelled_ = true;
    end();
  }
  void OnWriteDone(bool ok) override {
    const Lock lock(mutex_);
    writing_ = false;
    if (!ok) outbox_.clear();
    pump();
  }
  void OnDone() override { const std::shared_ptr<Attendance> last = std::move(self_); }

  void welcome(const Welcome& welcome) override {
    wire::ToMember message;
    to_wire(welcome, *message.mutable_welcome());
    send(std::move(message));
  }
  void placed(const Member& member) override {
    wire::ToMember message;
    message.mutable_placed()->set_rank(member.rank);
    message.mutable_placed()->set_slots(member.slots);
    send(std::move(message));
  }
  void heartbeat(const std::string& waiting) override {
    const Lock lock(mutex_);
    if (!outbox_.empty()) return;  // it does not read: more of the same would only fill memory
    wire::ToMember message;
    message.mutable_heartbeat()->set_waiting(waiting);
    push(std::move(message));
  }
  void notice(const Failure& failure) override {
    wire::ToMember message;
    to_wire(failure, *message.mutable_notice());
    send(std::move(message));
  }
  void crew(const CrewChange& change) override {
    wire::ToMember message;
    to_wire(change, *message.mutable_crew());
    send(std::move(message));
  }
  void dismissed(const std::string& reason) override {
    wire::ToMember message;
    message.mutable_dismissal()->set_reason(reason);
    send(std::move(message));
  }
  void more(int workers) override {
    wire::ToMember message;
    message.mutable_more()->set_workers(workers);
    send(std::move(message));
  }
  void farewell() override {
    wire::ToMember message;
    message.mutable_farewell();
    send(std::move(message));
  }
  void close(const std::optional<Refusal>& refusal) override {
    const Lock lock(mutex_);
    if (closing_) return;
    closing_ = true;
    status_ = status_of(refusal);
    pump();
  }

 private:
  void end() {
    if (const uint64_t member = member_) desk_->disconnected(member, this);
    const Lock lock(mutex_);
    outbox_.clear();
    closing_ = true;
    pump();
  }

  void send(wire::ToMember message) {
    const Lock lock(mutex_);
    push(std::move(message));
  }
  void push(wire::ToMember message) TRIREME_REQUIRES(mutex_) {
    if (closing_) return;
    outbox_.push_back(std::move(message));
    pump();
  }

  /// The next message, or the end when there is none.
  void pump() TRIREME_REQUIRES(mutex_) {
    if (writing_ || finished_) return;
    if (!outbox_.empty()) {
      outgoing_ = std::move(outbox_.front());
      outbox_.pop_front();
      writing_ = true;
      StartWrite(&outgoing_);
    } else if (closing_) {
      finished_ = true;
      Finish(status_);
    }
  }

  const std::shared_ptr<Desk> desk_;
  const std::string token_, address_;
  std::shared_ptr<Attendance> self_;
  wire::FromMember incoming_;
  std::atomic<uint64_t> member_ = 0;
  std::atomic<bool> cancelled_ = false;

  Mutex mutex_;
  std::deque<wire::ToMember> outbox_ TRIREME_GUARDED_BY(mutex_);
  wire::ToMember outgoing_ TRIREME_GUARDED_BY(mutex_);
  grpc::Status status_ TRIREME_GUARDED_BY(mutex_);
  TRIREME_GUARDED_BY(mutex_) bool writing_ = false, closing_ = false, finished_ = false;
};

/// A get that may have to wait. Deletes itself.
class Getting final : public grpc::ServerUnaryReactor {
 public:
  Getting(std::shared_ptr<Desk> desk, const std::string& token, const wire::GetRequest& request, wire::GetReply* reply)
      : desk_(std::move(desk)) {
    ticket_ = desk_->get(token, request.member(), request.key(),
                         [this, reply](const std::variant<std::string, Refusal>& answer) {
                           if (const auto* refusal = std::get_if<Refusal>(&answer)) return Finish(status_of(*refusal));
                           reply->set_value(std::get<std::string>(answer));
                           Finish(grpc::Status::OK);
                         });
  }
  void OnCancel() override { desk_->cancel(ticket_); }
  void OnDone() override { const std::unique_ptr<Getting> last(this); }

 private:
  const std::shared_ptr<Desk> desk_;
  uint64_t ticket_ = 0;
};

class Service final : public wire::Coordination::CallbackService {
 public:
  explicit Service(std::shared_ptr<Desk> desk) : desk_(std::move(desk)) {}

  grpc::ServerBidiReactor<wire::FromMember, wire::ToMember>* Attend(grpc::CallbackServerContext* context) override {
    const auto attendance = std::make_shared<Attendance>(desk_, *context);
    attendance->start(attendance);
    return attendance.get();
  }
  grpc::ServerUnaryReactor* Put(grpc::CallbackServerContext* context, const wire::PutRequest* request,
                                wire::PutReply* /*reply*/) override {
    grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
    reactor->Finish(status_of(desk_->put(token_of(*context), request->member(), request->key(), request->value())));
    return reactor;
  }
  grpc::ServerUnaryReactor* Get(grpc::CallbackServerContext* context, const wire::GetRequest* request,
                                wire::GetReply* reply) override {
    return std::make_unique<Getting>(desk_, token_of(*context), *request, reply).release();
  }

 private:
  const std::shared_ptr<Desk> desk_;
};

/// Calls tick() a few times per heartbeat limit.
class Ticker {
 public:
  Ticker(std::shared_ptr<Desk> desk, Seconds period)
      : thread_([this, desk = std::move(desk), period] { run(*desk, period); }) {}
  ~Ticker() {
    {
      const Lock lock(mutex_);
      stop_ = true;
    }
    bell_.notify_all();
    thread_.join();
  }
  Ticker(const Ticker&) = delete;
  Ticker& operator=(const Ticker&) = delete;

 private:
  void run(Desk& desk, Seconds period) {
    name_thread("trireme-coord");
    Lock lock(mutex_);
    while (true) {
      const auto begin = Clock::now();
      if (bell_.wait_for(lock, period, [&]() TRIREME_REQUIRES(mutex_) { return stop_; })) return;
      const Seconds late = Seconds(Clock::now() - begin) - period;
      desk.tick(late > period ? late
                              : Seconds(0));  // this process was stopped or starved: that is not the members' silence
    }
  }

  Mutex mutex_;
  Condition bell_;
  bool stop_ TRIREME_GUARDED_BY(mutex_) = false;
  std::thread thread_;  // last: it uses what stands above
};

void check(const CoordinatorOptions& options) {
  if (options.token.empty())
    fail<InvalidArgument>("a coordinator needs a token: without one, anybody on the network could join the job");
  if (options.ranks < 1 || options.ranks > 1 << 16)
    fail<InvalidArgument>("the number of ranks must be 1 to {}, not {}", 1 << 16, options.ranks);
  if (options.servers < 0 || options.servers > 1 << 16)
    fail<InvalidArgument>("the number of servers must be 0 to {}, not {}", 1 << 16, options.servers);
  if (options.port < 0 || options.port > 65535)
    fail<InvalidArgument>("a port is a number from 0 (any) to 65535, not {}", options.port);
  if (!(options.heartbeat_limit >= Seconds(0.1) && options.heartbeat_limit <= Seconds(3600)))
    fail<InvalidArgument>("the heartbeat limit must be 0.1 to 3600 seconds, not {:g}", options.heartbeat_limit.count());
  if (options.least < 1 || options.least > options.ranks || (options.most != 0 && options.most < options.ranks))
    fail<InvalidArgument>("a job that starts with {} workers cannot have {} at least and {} at most", options.ranks,
                          options.least, options.most);
  if (!(options.patience > Seconds(0) && options.patience <= Seconds(86400)))
    fail<InvalidArgument>("members wait for a coordinator for more than 0 and up to 86400 seconds, not {:g}",
                          options.patience.count());
  if (!options.journal.empty() && options.port == 0 && options.socket.empty())
    fail<InvalidArgument>(
        "a coordinator with a journal needs a port of its own: members look for the next one where this "
        "one was. Give --port");
  if (!(options.rejoin_timeout >= Seconds(0)))
    fail<InvalidArgument>("the rejoin timeout must be 0 seconds or more, not {:g}", options.rejoin_timeout.count());
  size_t bytes = 0;
  for (const auto& [name, slots] : options.spec.hosts) bytes += name.size() + 16;
  for (const std::string& word : options.spec.command) bytes += word.size() + 8;
  for (const std::string& word : options.spec.server_command) bytes += word.size() + 8;
  for (const auto& [name, value] : options.spec.environment) bytes += name.size() + value.size() + 16;
  if (bytes > options.limits.message_bytes)
    fail<InvalidArgument>("hosts, command and environment of the job have {} bytes, the limit is {}", bytes,
                          options.limits.message_bytes);
  if (!options.spec.server_command.empty() && options.spec.hosts.empty())
    fail<InvalidArgument>("a job whose agents start servers needs a host list: it says which of them are whose");
  if (options.spec.hosts.empty()) return;
  const long slots = std::accumulate(options.spec.hosts.begin(), options.spec.hosts.end(), 0L,
                                     [](long sum, const auto& host) { return sum + host.second; });
  const bool positive = std::all_of(options.spec.hosts.begin(), options.spec.hosts.end(),
                                    [](const auto& host) { return host.second > 0; });
  if (slots != options.ranks || !positive)
    fail<InvalidArgument>(
        "the host list has {} slots, the job {} ranks: every host needs at least one slot, and together one per rank",
        slots, options.ranks);
}

DeskOptions desk_options(const CoordinatorOptions& options) {
  DeskOptions desk;
  desk.job = options.job;
  desk.token = options.token;
  desk.host = options.host.empty() ? own_host_name() : options.host;
  desk.version = library_version();
  desk.membership = {options.ranks,         options.heartbeat_limit, options.spec.hosts, options.limits.members,
                     options.servers,       options.on_loss,         options.least,      options.most,
                     options.rejoin_timeout};
  desk.limits = options.limits;
  desk.spec = options.spec;
  if (options.journal.empty()) return desk;
  desk.journal = journal::open_file_journal(options.journal);
  desk.patience = options.patience;
  // A member sees after the heartbeat limit at the latest that its coordinator is gone, and then looks for it all the
  // time.
  desk.membership.return_limit = std::min(options.patience, options.heartbeat_limit + kReturn);
  return desk;
}

}  // namespace

struct Coordinator::State {
  explicit State(const CoordinatorOptions& options)
      : desk(std::make_shared<Desk>(desk_options(options))), service(desk) {}

  void listen(const CoordinatorOptions& options) {
    grpc::EnableDefaultHealthCheckService(true);  // for the probes of Kubernetes
    grpc::ServerBuilder builder;
    builder.AddChannelArgument(GRPC_ARG_ALLOW_REUSEPORT,
                               0);  // or two coordinators would share a port, and members between them
    builder.AddChannelArgument(GRPC_ARG_MAX_CONCURRENT_STREAMS, 1024);
    builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_TIME_MS,
                               20'000);  // heartbeats find the dead; this frees their connections
    builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, 10'000);
    // A little more than a message may have, so that most of what is too large gets our answer and not gRPC's.
    builder.SetMaxReceiveMessageSize(static_cast<int>(options.limits.message_bytes + (64 << 10)));
    builder.SetMaxSendMessageSize(static_cast<int>(options.limits.message_bytes + (64 << 10)));
    const std::string where =
        options.socket.empty() ? joined(options.address, options.port) : kUnixSocket + options.socket;
    builder.AddListeningPort(where, server_credentials(options.tls), &port);
    builder.RegisterService(&service);
    server = builder.BuildAndStart();
    if (server && port > 0) return;
    server.reset();
    if (!options.socket.empty()) fail<IoError>("the job's desk cannot listen on the unix socket '{}'", where);
    fail<IoError>(
        "host {}: the coordinator cannot listen on {}: {}. Is another one running there? Give another --port, or 0 for "
        "any that is free; where a rank runs it, "
        "another MASTER_PORT",
        own_host_name(), joined(options.address, options.port), listen_fault(options.address, options.port));
  }

  std::shared_ptr<Desk> desk;
  Service service;
  int port = 0;
  std::unique_ptr<grpc::Server> server;
  std::unique_ptr<Ticker> ticker;
  std::unique_ptr<StatusDoor> door;
  std::unique_ptr<ControlDoor> control;  // null where the crew does not change
};

Coordinator::Coordinator(const CoordinatorOptions& options) {
  check(options);
  prepare_grpc();
  const SignalsBlocked blocked;
  state_ = std::make_unique<State>(options);
  state_->listen(options);
  state_->ticker = std::make_unique<Ticker>(state_->desk, options.heartbeat_limit / 6);
  state_->door = std::make_unique<StatusDoor>([desk = state_->desk] { return desk->counted(); });
  if (options.on_loss != OnLoss::change_crew) return;
  const std::string meeting = options.socket.empty() ? options.job + "/" + options.token : options.job;
  state_->control = std::make_unique<ControlDoor>(
      job_id(meeting),
      [desk = state_->desk, job = job_id(meeting)](const std::string& words) { return obey(*desk, words, job); });
}

Coordinator::~Coordinator() {
  state_->control.reset();
  state_->door.reset();
  state_->ticker.reset();
  state_->desk->close();
  state_->server->Shutdown(std::chrono::system_clock::now() + std::chrono::milliseconds(500));
}

int Coordinator::port() const { return state_->port; }
Snapshot Coordinator::snapshot() const { return state_->desk->snapshot(); }
std::vector<MemberMetrics> Coordinator::counted() const { return state_->desk->counted(); }
bool Coordinator::wait_ended(const Deadline& deadline) const { return state_->desk->wait_ended(deadline); }
std::string Coordinator::set_target(int workers) { return state_->desk->set_target(workers); }
std::string Coordinator::drain(int rank) { return state_->desk->drain(rank); }
int Coordinator::next_rank() { return state_->desk->next_rank(); }
void Coordinator::conclude() { state_->desk->conclude(); }
void Coordinator::hurry(const std::string& why) { state_->desk->hurry(why); }
void Coordinator::fail_job(const std::string& reason) { state_->desk->fail_job(reason); }
std::vector<std::string> Coordinator::take_events() { return state_->desk->take_events(); }
int Coordinator::descriptor() const { return state_->desk->descriptor(); }

const char* library_version() { return TRIREME_VERSION; }

std::string own_host_name() {
  std::array<char, 256> name{};
  return gethostname(name.data(), name.size() - 1) == 0 ? name.data() : "this host";
}

}  // namespace trireme::cluster
