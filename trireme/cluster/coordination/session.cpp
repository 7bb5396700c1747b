#include <unistd.h>

#include <map>
#include <thread>

#include <trireme/base/error.h>
#include <trireme/base/lock.h>
#include <trireme/base/process.h>
#include <trireme/base/watch.h>
#include <trireme/cluster/coordination/coordinator.h>
#include <trireme/cluster/coordination/member_metrics.h>
#include <trireme/cluster/coordination/reach.h>
#include <trireme/cluster/coordination/session.h>
#include <trireme/cluster/coordination/tls.h>

#include "stream.h"

namespace trireme::cluster {
namespace {

constexpr Seconds kBetweenTries{0.1};
constexpr Seconds kLastWords{1};
constexpr Seconds kWhileHeld{60};  // between two looks at the same

std::chrono::system_clock::time_point system_time(const Deadline& deadline) {
  return std::chrono::system_clock::now() +
         std::chrono::duration_cast<std::chrono::system_clock::duration>(deadline.left());
}

}  // namespace

class Session::State {
 public:
  State(SessionOptions options, Member member)
      : options_(std::move(options)),
        member_(std::move(member)),
        endpoint_(endpoint_of(options_.coordinator, "a coordinator")),
        news_(options_.counted) {
    if (!options_.tls.empty()) certificates_ = load_certificates(options_.tls, member_.host);
    if (options_.version.empty()) options_.version = library_version();
    const Deadline deadline(options_.timeout);
    const Watch watch("trireme-ctrl-c", {options_.interrupt}, [this](size_t) {
      const Lock lock(mutex_);
      interrupted_ = true;
      bell_.notify_all();
    });
    while (!register_once(deadline)) {
      Lock lock(mutex_);
      bell_.wait_for(lock, std::min(kBetweenTries, deadline.left()),
                     [&]() TRIREME_REQUIRES(mutex_) { return interrupted_; });
    }
    thread_ = std::thread([this] { run(); });
    try {
      wait_for_place(deadline);
    } catch (...) {
      stop();
      throw;
    }
  }

  ~State() { stop(); }
  State(const State&) = delete;
  State& operator=(const State&) = delete;

  void put(const std::string& key, const std::string& value) {
    wire::PutRequest request;
    request.set_member(welcome_.member);
    request.set_key(key);
    request.set_value(value);
    const Deadline deadline(options_.timeout);
    wire::PutReply reply;
    const grpc::Status status =
        call(deadline, [&](grpc::ClientContext& context) { return stub_->Put(&context, request, &reply); });
    if (status.ok()) return;
    if (status.error_code() == grpc::StatusCode::RESOURCE_EXHAUSTED)
      fail<InvalidArgument>("{} cannot keep the value of '{}' ({} bytes): it {}", coordinator(), key, value.size(),
                            status.error_message());
    raise(status, fmt::format("'{}' could not be put within {:g} s", key, deadline.limit().count()));
  }

  /// Without an epoch it outlasts all changes of the crew.
  std::string get(const std::string& key, const Deadline& deadline, std::optional<uint64_t> within = std::nullopt) {
    wire::GetRequest request;
    request.set_member(welcome_.member);
    request.set_key(key);
    wire::GetReply reply;
    const grpc::Status status = call(
        deadline, [&](grpc::ClientContext& context) { return stub_->Get(&context, request, &reply); }, within);
    if (!status.ok()) raise(status, fmt::format("nobody has put '{}' within {:g} s", key, deadline.limit().count()));
    return std::move(*reply.mutable_value());
  }

  CrewChange next_crew(uint64_t epoch, const Deadline& deadline) {
    Lock lock(mutex_);
    const auto held = [&]() TRIREME_REQUIRES(mutex_) { return crew_.epoch > epoch && crew_.ranks.empty(); };
    do  // who is held hears from the coordinator that the crew is complete, or that the job has failed
      bell_.wait_for(lock, held() ? kWhileHeld : deadline.left(), [&]() TRIREME_REQUIRES(mutex_) {
        return (crew_.epoch > epoch && !crew_.ranks.empty()) || failure_ || dismissal_;
      });
    while (held() && !failure_ && !dismissal_);
    if (failure_) throw PeerLost(failure_->reason);
    if (dismissal_) throw Dismissed(*dismissal_);
    if (crew_.epoch > epoch) return crew_;
    fail<Timeout>("{} has named no crew after epoch {} within {:g} s: nobody has been lost, as far as it knows",
                  coordinator(), epoch, deadline.limit().count());
  }

  std::vector<CrewChange> crews() const {
    const Lock lock(mutex_);
    return crews_;
  }

  void ready(const std::string& machine) {
    wire::FromMember message;
    message.mutable_ready()->set_machine(machine);
    stream_->send(std::move(message));
  }

  void confirm(uint64_t epoch, const std::string& machine) {
    wire::FromMember message;
    message.mutable_confirm()->set_epoch(epoch);
    message.mutable_confirm()->set_machine(machine);
    stream_->send(std::move(message));
  }

  void on_crew(std::function<void(const CrewChange&)> notify) {
    const Lock lock(mutex_);
    notify_crew_ = std::move(notify);
    bell_.notify_all();
  }

  void on_wish(std::function<void()> notify) {
    const Lock lock(mutex_);
    notify_wish_ = std::move(notify);
    bell_.notify_all();
  }

  std::optional<std::string> dismissal() const {
    const Lock lock(mutex_);
    return dismissal_;
  }

  int more() const {
    const Lock lock(mutex_);
    return more_;
  }

  void leave(int exit_code, const std::string& reason, int rank, int server) {
    wire::FromMember message;
    message.mutable_leave()->set_exit_code(exit_code);
    message.mutable_leave()->set_reason(reason);
    message.mutable_leave()->set_rank(rank);
    message.mutable_leave()->set_server(server);
    Lock lock(mutex_);
    if (std::exchange(leaving_, true)) return;
    lock.unlock();
    send_heartbeat(true);
    stream_->send(std::move(message));
    lock.lock();
    bell_.wait_for(lock, std::min(options_.heartbeat_limit, options_.timeout),
                   [&]() TRIREME_REQUIRES(mutex_) { return farewell_ || end_.has_value(); });
    lock.unlock();
    stop();
  }

  std::optional<Failure> failure() const {
    const Lock lock(mutex_);
    return failure_;
  }

  void on_failure(std::function<void(const Failure&)> notify) {
    const Lock lock(mutex_);
    notify_ = std::move(notify);
    bell_.notify_all();
  }

  const Member& member() const { return member_; }
  const Welcome& welcome() const { return welcome_; }
  const std::string& address() const { return address_; }
  const std::string& meeting() const { return meeting_; }

 private:
  std::string coordinator() const {
    return fmt::format("host {}: the coordinator at {}", member_.host, options_.coordinator);
  }

  // ---- registration ----

  /// True when registered, false when it is worth another try. Throws when it is not, and when the time is up.
  bool register_once(const Deadline& deadline) {
    const Reached reached = reach(endpoint_, deadline, options_.interrupt);
    check_interrupted();
    if (!reached.socket) {
      if (deadline.passed()) no_answer(reached.fault);
      return false;
    }
    address_ = reached.address;
    open(reached.target);
    Lock lock(mutex_);
    bell_.wait_for(lock, deadline.left(),
                   [&]() TRIREME_REQUIRES(mutex_) { return welcomed_ || interrupted_ || end_.has_value(); });
    if (welcomed_) return true;
    const std::optional<grpc::Status> end = end_;
    lock.unlock();
    stream_.reset();
    check_interrupted();
    if (!end) no_answer("it accepts connections but says nothing: is it a coordinator, and not stopped?");
    const bool down =
        end->error_code() == grpc::StatusCode::UNAVAILABLE || end->error_code() == grpc::StatusCode::CANCELLED;
    if (!down) raise(*end, "");
    explain_tls();
    if (deadline.passed()) no_answer(end->error_message());
    return false;
  }

  void open(const std::string& target) {
    stream_.reset();
    {
      const Lock lock(mutex_);
      end_.reset();
    }
    const SignalsBlocked blocked;
    stub_ = wire::Coordination::NewStub(channel_to(target, certificates_));
    stream_ = std::make_unique<Stream>(
        *stub_, options_.token, [this](const wire::ToMember& message) { received(message); },
        [this](const grpc::Status& status) { ended(status); });
    wire::FromMember message;
    wire::Hello& hello = *message.mutable_hello();
    hello.set_job(options_.job);
    hello.set_version(options_.version);
    hello.set_kind(member_.kind);
    hello.set_rank(member_.rank);
    hello.set_size(member_.size);
    hello.set_servers(member_.servers);
    hello.set_slots(member_.slots);
    hello.set_host(member_.host);
    hello.set_pid(member_.pid);
    hello.set_newcomer(member_.newcomer);
    hello.set_wall_clock(Seconds(std::chrono::system_clock::now().time_since_epoch()).count());
    stream_->send(std::move(message));
  }

  void check_interrupted() const {
    const Lock lock(mutex_);
    if (interrupted_)
      fail<PeerLost>("host {}: interrupted while it waited for the coordinator at {}", member_.host,
                     options_.coordinator);
  }

  [[noreturn]] void no_answer(const std::string& why) const {
    fail<Timeout>(
        "{} has not answered within {:g} s ({}): is it running, is the address right, and does no firewall block the "
        "port?",
        coordinator(), options_.timeout.count(), why);
  }

  /// Throws when the connection fails because the two sides' certificates do not go together; trying again would not
  /// help.
  void explain_tls() const {
    const std::string fault = tls_fault(endpoint_, certificates_, options_.tls);
    if (!fault.empty()) fail<InvalidArgument>("{} {}", coordinator(), fault);
  }

  void wait_for_place(const Deadline& deadline) {
    Lock lock(mutex_);
    bell_.wait_for(lock, deadline.left(),
                   [&]() TRIREME_REQUIRES(mutex_) { return placed_ || failure_ || interrupted_; });
    if (placed_) return;
    if (failure_) throw PeerLost(failure_->reason);
    if (interrupted_)
      fail<PeerLost>("host {}: interrupted while {}", member_.host,
                     waiting_.empty() ? "not all had registered" : waiting_);
    fail<Timeout>("{} could not assign a rank within {:g} s: {}", coordinator(), options_.timeout.count(),
                  waiting_.empty() ? "not all have registered" : waiting_);
  }

  // ---- news, from gRPC's threads ----

  void received(const wire::ToMember& message) {
    const Lock lock(mutex_);
    silence_ = Seconds(0);
    if (message.has_welcome() && !welcomed_) {
      welcome_ = from_wire(message.welcome());
      meeting_ = welcome_.job + "/" + options_.token;
      welcomed_ = true;
    } else if (message.has_placed() && !placed_) {
      member_.rank = message.placed().rank();
      member_.slots = message.placed().slots();
      placed_ = true;
    } else if (message.has_heartbeat()) {
      waiting_ = message.heartbeat().waiting();
      return;
    } else if (message.has_notice()) {
      set_failure(from_wire(message.notice()));
    } else if (message.has_crew()) {
      crew_ = from_wire(message.crew());
      crews_.push_back(crew_);
      if (!crew_.announced) ended_before_ = crew_;
      for (const auto& [context, within] : calls_)
        if (within && *within < ended_before_.epoch) context->TryCancel();
    } else if (message.has_dismissal()) {
      dismissal_ = message.dismissal().reason();
      wished_ = true;
    } else if (message.has_more()) {
      more_ += std::clamp(message.more().workers(), 0, kRankNumbers);
      wished_ = true;
    } else if (message.has_farewell()) {
      farewell_ = true;
    }
    bell_.notify_all();
  }

  void ended(const grpc::Status& status) {
    const Lock lock(mutex_);
    end_ = status;
    if (welcomed_ && status.error_code() == grpc::StatusCode::FAILED_PRECONDITION)
      set_failure({member_.rank, member_.host, status.error_message()});
    if (welcomed_)
      set_failure({-1, endpoint_.host,
                   fmt::format("the coordinator at {} is gone: the connection from host {} to it ended. It was stopped "
                               "or killed, or its host is down",
                               options_.coordinator, member_.host)});
    bell_.notify_all();
  }

  /// The first counts.
  void set_failure(Failure failure) TRIREME_REQUIRES(mutex_) {
    if (failure_ || leaving_ || farewell_) return;
    failure_ = std::move(failure);
    for (const auto& [context, within] : calls_) context->TryCancel();
    bell_.notify_all();
  }

  // ---- the session's thread ----

  bool new_crew() const TRIREME_REQUIRES(mutex_) { return notify_crew_ && crew_.epoch > told_epoch_; }
  bool new_wish() const TRIREME_REQUIRES(mutex_) { return notify_wish_ && wished_; }

  void run() {
    name_thread("trireme-session");
    const Seconds limit = options_.heartbeat_limit, period = std::min(limit, welcome_.heartbeat_limit) / 6;
    Lock lock(mutex_);
    auto last = Clock::now();
    while (!stop_) {
      bell_.wait_for(lock, period - Seconds(Clock::now() - last),
                     [&]() TRIREME_REQUIRES(mutex_) { 
        return stop_ || (failure_ && notify_) || new_crew() || new_wish();
      });
      if (new_crew() && !stop_) {
        const auto notify = notify_crew_;
        const CrewChange crew = crew_;
        told_epoch_ = crew.epoch;
        lock.unlock();
        notify(crew);
        lock.lock();
      }
      if (new_wish() && !stop_) {
        const auto notify = notify_wish_;
        wished_ = false;
        lock.unlock();
        notify();
        lock.lock();
      }
      if (failure_ && notify_ && !stop_) {
        const auto notify = std::exchange(notify_, nullptr);
        const Failure failure = *failure_;
        lock.unlock();
        notify(failure);
        lock.lock();
      }
      const Seconds elapsed(Clock::now() - last);
      if (stop_ || elapsed < period) continue;
      last = Clock::now();
      silence_ += std::min(elapsed,
                           2 * period);  // if this process was stopped meanwhile, that is not the coordinator's silence
      if (silence_ > limit)
        set_failure({-1, endpoint_.host,
                     fmt::format("the coordinator at {} has not answered host {} for {:.1f} s (limit {:g} s): it is "
                                 "stopped, or its host or the network is down",
                                 options_.coordinator, member_.host, silence_.count(), limit.count())});
      lock.unlock();
      beat();
      lock.lock();
    }
  }

  void beat() {
    if (!stream_->busy()) send_heartbeat(false);
  }

  void send_heartbeat(bool last) {
    const Lock one_at_a_time(news_mutex_);
    wire::FromMember message;
    message.mutable_heartbeat()->set_metrics(news_.next(Clock::now(), last));
    stream_->send(std::move(message));
  }

  void stop() {
    {
      const Lock lock(mutex_);
      stop_ = true;
      bell_.notify_all();
    }
    if (thread_.joinable()) thread_.join();
  }

  // ---- calls ----

  /// One call with token and deadline, which ends early when the job fails.
  template <class Call>
  grpc::Status call(const Deadline& deadline, const Call& run, std::optional<uint64_t> within = std::nullopt) {
    grpc::ClientContext context;
    context.AddMetadata(kTokenKey, options_.token);
    context.set_deadline(system_time(deadline));
    {
      const Lock lock(mutex_);
      if (failure_) throw PeerLost(failure_->reason);
      if (leaving_) fail<InvalidArgument>("{} was told goodbye already", coordinator());
      if (within && *within < ended_before_.epoch) throw PeerLost(ended_before_.reason);
      calls_.emplace(&context, within);
    }
    grpc::Status status = run(context);
    Lock lock(mutex_);
    calls_.erase(&context);
    if (!status.ok() && !failure_ && within && *within < ended_before_.epoch) throw PeerLost(ended_before_.reason);
    // With the connection gone, the stream is about to say so too: one failure, one sentence.
    if (status.error_code() == grpc::StatusCode::UNAVAILABLE || status.error_code() == grpc::StatusCode::CANCELLED)
      bell_.wait_for(lock, kLastWords, [&]() TRIREME_REQUIRES(mutex_) { return failure_ || leaving_; });
    if (!status.ok() && failure_) throw PeerLost(failure_->reason);
    return status;
  }

  [[noreturn]] void raise(const grpc::Status& status, const std::string& timeout) const {
    switch (status.error_code()) {
      case grpc::StatusCode::FAILED_PRECONDITION:
        throw PeerLost(status.error_message());
      case grpc::StatusCode::OUT_OF_RANGE:
        fail<Dismissed>("{} {}", coordinator(), status.error_message());
      case grpc::StatusCode::ABORTED:
        fail<Mismatch>("{} {}", coordinator(), status.error_message());
      case grpc::StatusCode::DEADLINE_EXCEEDED:
        fail<Timeout>("host {}: {}", member_.host, timeout);
      case grpc::StatusCode::UNAVAILABLE:
      case grpc::StatusCode::CANCELLED:
        fail<PeerLost>("{} is gone ({})", coordinator(), status.error_message());
      case grpc::StatusCode::UNIMPLEMENTED:
        fail<InvalidArgument>("{} is not a coordinator: another program answers there", coordinator());
      default:
        fail<InvalidArgument>("{} {}", coordinator(), status.error_message());
    }
  }

  SessionOptions options_;
  Member member_;  // rank and slots: written before the constructor returns
  const Endpoint endpoint_;
  std::optional<Certificates> certificates_;
  std::string address_;
  Welcome welcome_;      // as member_
  std::string meeting_;  // as member_
  std::unique_ptr<wire::Coordination::Stub> stub_;
  Mutex news_mutex_;
  MetricsNews news_ TRIREME_GUARDED_BY(news_mutex_);

  mutable Mutex mutex_;
  Condition bell_;
  TRIREME_GUARDED_BY(mutex_) bool welcomed_ = false, placed_ = false, interrupted_ = false, leaving_ = false;
  TRIREME_GUARDED_BY(mutex_) bool farewell_ = false, stop_ = false;
  std::optional<grpc::Status> end_ TRIREME_GUARDED_BY(mutex_);  // of the stream
  std::string waiting_ TRIREME_GUARDED_BY(mutex_);
  Seconds silence_ TRIREME_GUARDED_BY(mutex_){0};
  std::optional<Failure> failure_ TRIREME_GUARDED_BY(mutex_);
  std::function<void(const Failure&)> notify_ TRIREME_GUARDED_BY(mutex_);
  std::map<grpc::ClientContext*, std::optional<uint64_t>> calls_
      TRIREME_GUARDED_BY(mutex_);  // that run, and the epoch that they belong to
  CrewChange crew_ TRIREME_GUARDED_BY(mutex_);
  CrewChange ended_before_ TRIREME_GUARDED_BY(mutex_);  // the last that followed a loss: it has ended all before it
  std::vector<CrewChange> crews_ TRIREME_GUARDED_BY(mutex_);
  std::optional<std::string> dismissal_ TRIREME_GUARDED_BY(mutex_);  // why this process is not needed any more
  int more_ TRIREME_GUARDED_BY(mutex_) = 0;
  bool wished_ TRIREME_GUARDED_BY(mutex_) = false;  // one of these two has changed
  std::function<void()> notify_wish_ TRIREME_GUARDED_BY(mutex_);
  uint64_t told_epoch_ TRIREME_GUARDED_BY(mutex_) = 0;
  std::function<void(const CrewChange&)> notify_crew_ TRIREME_GUARDED_BY(mutex_);

  // Last, so that they go first, also when the constructor throws: their callbacks use all of the above.
  std::unique_ptr<Stream> stream_;
  std::thread thread_;
};

Session::Session(SessionOptions options, Member member) {
  prepare_grpc();
  if (member.host.empty()) member.host = own_host_name();
  if (member.pid == 0) member.pid = getpid();
  state_ = std::make_unique<State>(std::move(options), std::move(member));
}

Session::~Session() = default;

int Session::rank() const { return state_->member().rank; }
int Session::size() const { return state_->welcome().size; }
int Session::servers() const { return state_->welcome().servers; }
int Session::slots() const { return state_->member().slots; }
const std::string& Session::job() const { return state_->welcome().job; }
const std::string& Session::meeting() const { return state_->meeting(); }
const JobSpec& Session::spec() const { return state_->welcome().spec; }
const std::string& Session::address() const { return state_->address(); }
const std::vector<std::string>& Session::warnings() const { return state_->welcome().warnings; }
void Session::put(const std::string& key, const std::string& value) { state_->put(key, value); }
std::string Session::get(const std::string& key, const Deadline& deadline) { return state_->get(key, deadline); }
std::string Session::get_within(uint64_t epoch, const std::string& key, const Deadline& deadline) {
  return state_->get(key, deadline, epoch);
}
CrewChange Session::next_crew(uint64_t epoch, const Deadline& deadline) { return state_->next_crew(epoch, deadline); }
std::vector<CrewChange> Session::crews() const { return state_->crews(); }
bool Session::elastic() const { return state_->welcome().elastic; }
void Session::ready(const std::string& machine) { state_->ready(machine); }
void Session::confirm(uint64_t epoch, const std::string& machine) { state_->confirm(epoch, machine); }
void Session::on_crew(std::function<void(const CrewChange&)> notify) { state_->on_crew(std::move(notify)); }
std::optional<std::string> Session::dismissal() const { return state_->dismissal(); }
int Session::more() const { return state_->more(); }
void Session::on_wish(std::function<void()> notify) { state_->on_wish(std::move(notify)); }
std::optional<Failure> Session::failure() const { return state_->failure(); }
void Session::on_failure(std::function<void(const Failure&)> notify) { state_->on_failure(std::move(notify)); }
void Session::leave(int exit_code, const std::string& reason, int rank, int server) {
  state_->leave(exit_code, reason, rank, server);
}

}  // namespace trireme::cluster
