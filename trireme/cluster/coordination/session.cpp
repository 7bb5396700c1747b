#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <map>
#include <thread>

#include <trireme/base/descriptor.h>
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
// Of a coordinator that is away:
constexpr Seconds kFirstPause{0.05}, kMostPause{1};  // between two tries
constexpr Seconds kConnect{1}, kAnswer{2};           // of one try

/// One connection to a coordinator.
struct Link {
  std::unique_ptr<wire::Coordination::Stub> stub;
  std::unique_ptr<Stream> stream;
};

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
        secret_(make_token()),
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
    const grpc::Status status = call(deadline, [&](wire::Coordination::Stub& stub, grpc::ClientContext& context) {
      return stub.Put(&context, request, &reply);
    });
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
        deadline,
        [&](wire::Coordination::Stub& stub, grpc::ClientContext& context) {
          return stub.Get(&context, request, &reply);
        },
        within);
    if (!status.ok()) raise(status, fmt::format("nobody has put '{}' within {:g} s", key, deadline.limit().count()));
    return std::move(*reply.mutable_value());
  }

  CrewChange next_crew(uint64_t epoch, const Deadline& deadline) {
    Lock lock(mutex_);
    // Who is held hears from the coordinator that the crew is complete, or that the job has failed.
    const auto held = [&]() TRIREME_REQUIRES(mutex_) { return crew_.epoch > epoch && crew_.ranks.empty(); };
    const auto named = [&]() TRIREME_REQUIRES(mutex_) {
      return (crew_.epoch > epoch && !crew_.ranks.empty()) || failure_ || dismissal_;
    };
    Deadline until = deadline;
    while (!named()) {
      const bool was_away = away_;
      const bool news = bell_.wait_for(lock, held() || was_away ? kWhileHeld : until.left(),
                                       [&]() TRIREME_REQUIRES(mutex_) { return named() || away_ != was_away; });
      if (was_away && !away_)
        until = Deadline(deadline.limit() + welcome_.patience);  // it has to hear of the loss first
      if (!news && !held() && !away_) break;
    }
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
    say(std::move(message), &State::ready_);
  }

  void confirm(uint64_t epoch, const std::string& machine) {
    wire::FromMember message;
    message.mutable_confirm()->set_epoch(epoch);
    message.mutable_confirm()->set_machine(machine);
    say(std::move(message), &State::confirmation_);
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
    say(std::move(message), &State::goodbye_);
    lock.lock();
    await_farewell(lock);
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
    Lock lock(mutex_);
    const uint64_t attempt = current_ = ++attempts_;
    end_.reset();
    lock.unlock();
    std::shared_ptr<Link> link = open(reached.target, attempt);
    lock.lock();
    bell_.wait_for(lock, deadline.left(),
                   [&]() TRIREME_REQUIRES(mutex_) { return welcomed_ || interrupted_ || end_.has_value(); });
    if (welcomed_) {
      link_ = std::move(link);
      return true;
    }
    const std::optional<grpc::Status> end = end_;
    lock.unlock();
    link.reset();
    check_interrupted();
    if (!end) no_answer("it accepts connections but says nothing: is it a coordinator, and not stopped?");
    const bool down =
        end->error_code() == grpc::StatusCode::UNAVAILABLE || end->error_code() == grpc::StatusCode::CANCELLED;
    if (!down) raise(*end, "");
    explain_tls();
    if (deadline.passed()) no_answer(end->error_message());
    return false;
  }

  /// Introduces this process there, for the first time or again.
  std::shared_ptr<Link> open(const std::string& target, uint64_t attempt) {
    const SignalsBlocked blocked;
    const auto link = std::make_shared<Link>();
    link->stub = wire::Coordination::NewStub(channel_to(target, certificates_));
    link->stream = std::make_unique<Stream>(
        *link->stub, options_.token, [this, attempt](const wire::ToMember& message) { received(attempt, message); },
        [this, attempt](const grpc::Status& status) { ended(attempt, status); });
    link->stream->send(introduction(attempt));
    return link;
  }

  wire::FromMember introduction(uint64_t attempt) {
    wire::FromMember message;
    wire::Hello& hello = *message.mutable_hello();
    hello.set_secret(secret_);
    hello.set_attempt(attempt);
    const Lock lock(mutex_);
    hello.set_member(welcomed_ ? welcome_.member : 0);
    hello.set_heard(crew_.epoch);
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
    return message;
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

  void received(uint64_t attempt, const wire::ToMember& message) {
    const Lock lock(mutex_);
    if (attempt != current_ && attempt != trying_) return;
    if (attempt == current_) {
      silence_ = Seconds(0);
      if (!end_ && std::exchange(away_, false)) bell_.notify_all();  // it was stopped, and goes on
    }
    if (message.has_welcome() && !welcomed_) {
      welcome_ = from_wire(message.welcome());
      meeting_ = welcome_.job + "/" + options_.token;
      welcomed_ = true;
    } else if (message.has_welcome()) {
      answered_ = attempt == trying_;
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
      const CrewChange change = from_wire(message.crew());
      if (change.epoch <= crew_.epoch) return;  // one that was told again
      crew_ = change;
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

  void ended(uint64_t attempt, const grpc::Status& status) {
    const Lock lock(mutex_);
    if (attempt == trying_) trying_end_ = status;
    if (attempt != current_) return bell_.notify_all();
    end_ = status;
    if (welcomed_ && status.error_code() == grpc::StatusCode::FAILED_PRECONDITION)
      set_failure({member_.rank, member_.host, status.error_message()});
    else if (waits() && !farewell_)
      begin_absence(Clock::now());
    else if (welcomed_)
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

  // ---- a coordinator that is away ----

  /// Whether another one may follow it. One without a journal leaves nothing to go on with.
  bool waits() const TRIREME_REQUIRES(mutex_) { return welcomed_ && welcome_.patience > Seconds(0); }

  void begin_absence(Clock::time_point since) TRIREME_REQUIRES(mutex_) {
    if (away_ || failure_) return;
    away_ = true;
    away_since_ = next_try_ = since;
    pause_ = kFirstPause;
    bell_.notify_all();
  }

  bool try_is_due() const TRIREME_REQUIRES(mutex_) {
    return away_ && !failure_ && !abandoned_ && Clock::now() >= next_try_;
  }

  /// Says it now, and once more to every coordinator that follows.
  void say(wire::FromMember message, std::optional<wire::FromMember> State::*kept) {
    std::shared_ptr<Link> link;
    {
      const Lock lock(mutex_);
      this->*kept = message;
      link = link_;
    }
    link->stream->send(std::move(message));
  }

  void come_back() TRIREME_REQUIRES(mutex_) {
    {
      const Unlocked meanwhile(mutex_);
      try_to_come_back();
    }
    if (!away_ || failure_) return;
    next_try_ = Clock::now() + std::chrono::duration_cast<Clock::duration>(pause_);
    pause_ = std::min(2 * pause_, kMostPause);
    const Seconds absence(Clock::now() - away_since_);
    if (absence > welcome_.patience)
      abandon(
          {-1, endpoint_.host,
           fmt::format("the coordinator at {} has been away from host {} for {:.1f} s, and no other one came in its "
                       "place (limit {:g} s: --coordinator-patience): it was killed or stopped, or its host or the "
                       "network is down",
                       options_.coordinator, member_.host, absence.count(), welcome_.patience.count())});
  }

  /// There is no coordinator that would have this process back.
  void abandon(Failure failure) TRIREME_REQUIRES(mutex_) {
    abandoned_ = true;
    set_failure(std::move(failure));
    bell_.notify_all();
  }

  void try_to_come_back() {
    const Reached reached = reach(endpoint_, Deadline(kConnect), stopped_.get());
    if (!reached.socket) return;
    Lock lock(mutex_);
    if (stop_) return;
    const uint64_t attempt = trying_ = ++attempts_;
    answered_ = false;
    trying_end_.reset();
    lock.unlock();
    std::shared_ptr<Link> link = open(reached.target, attempt);
    lock.lock();
    bell_.wait_for(lock, kAnswer,
                   [&]() TRIREME_REQUIRES(mutex_) { return answered_ || trying_end_ || farewell_ || stop_ || !away_; });
    trying_ = 0;
    if (farewell_) away_ = false;
    if (answered_ && !trying_end_ && away_) return attach(std::move(link), attempt);
    if (trying_end_) heed(*trying_end_);
    lock.unlock();
    link.reset();
    lock.lock();
  }

  /// Most refusals are for good.
  void heed(const grpc::Status& status) TRIREME_REQUIRES(mutex_) {
    switch (status.error_code()) {
      case grpc::StatusCode::FAILED_PRECONDITION:
        return abandon({member_.rank, member_.host, status.error_message()});
      case grpc::StatusCode::INVALID_ARGUMENT:
      case grpc::StatusCode::UNAUTHENTICATED:
      case grpc::StatusCode::ABORTED:
      case grpc::StatusCode::OUT_OF_RANGE:
        return abandon({-1, endpoint_.host, fmt::format("{} {}", coordinator(), status.error_message())});
      default:
        return;
    }
  }

  void attach(std::shared_ptr<Link> link, uint64_t attempt) TRIREME_REQUIRES(mutex_) {
    std::swap(link_, link);
    current_ = attempt;
    end_.reset();
    away_ = false;
    silence_ = Seconds(0);
    for (const auto& [context, within] : calls_) context->TryCancel();  // they begin anew
    for (const auto& message : {ready_, confirmation_, goodbye_})
      if (message) link_->stream->send(*message);
    bell_.notify_all();
    const Unlocked meanwhile(mutex_);
    {
      const Lock one_at_a_time(news_mutex_);
      news_ = MetricsNews(options_.counted);
    }
    link.reset();  // the old one
  }

  void await_farewell(Lock& lock) TRIREME_REQUIRES(mutex_) {
    while (true) {
      const bool was_away = away_;
      const Seconds most = was_away ? kWhileHeld : std::min(options_.heartbeat_limit, options_.timeout);
      const bool news = bell_.wait_for(lock, most, [&]() TRIREME_REQUIRES(mutex_) {
        return farewell_ || abandoned_ || away_ != was_away || (end_.has_value() && !away_);
      });
      if (farewell_ || abandoned_ || failure_ || (end_ && !away_) || (!news && !away_)) return;
    }
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
      Seconds pause = period - Seconds(Clock::now() - last);
      if (away_ && !abandoned_) pause = std::min(pause, Seconds(next_try_ - Clock::now()));
      bell_.wait_for(lock, pause, [&]() TRIREME_REQUIRES(mutex_) {
        return stop_ || (failure_ && notify_) || new_crew() || new_wish() || try_is_due();
      });
      tell_news();
      if (!stop_ && try_is_due()) come_back();
      const Seconds elapsed(Clock::now() - last);
      if (stop_ || elapsed < period) continue;
      last = Clock::now();
      silence_ += std::min(elapsed,
                           2 * period);  // if this process was stopped meanwhile, that is not the coordinator's silence
      if (silence_ > limit) note_silence(limit);
      lock.unlock();
      beat();
      lock.lock();
    }
  }

  void tell_news() TRIREME_REQUIRES(mutex_) {
    if (new_crew() && !stop_) {
      const auto notify = notify_crew_;
      const CrewChange crew = crew_;
      told_epoch_ = crew.epoch;
      const Unlocked meanwhile(mutex_);
      notify(crew);
    }
    if (new_wish() && !stop_) {
      const auto notify = notify_wish_;
      wished_ = false;
      const Unlocked meanwhile(mutex_);
      notify();
    }
    if (failure_ && notify_ && !stop_) {
      const auto notify = std::exchange(notify_, nullptr);
      const Failure failure = *failure_;
      const Unlocked meanwhile(mutex_);
      notify(failure);
    }
  }

  void note_silence(Seconds limit) TRIREME_REQUIRES(mutex_) {
    if (waits()) return begin_absence(Clock::now() - std::chrono::duration_cast<Clock::duration>(silence_));
    set_failure({-1, endpoint_.host,
                 fmt::format("the coordinator at {} has not answered host {} for {:.1f} s (limit {:g} s): it is "
                             "stopped, or its host or the network is down",
                             options_.coordinator, member_.host, silence_.count(), limit.count())});
  }

  std::shared_ptr<Link> link() {
    const Lock lock(mutex_);
    return link_;
  }

  void beat() {
    if (!link()->stream->busy()) send_heartbeat(false);
  }

  void send_heartbeat(bool last) {
    const Lock one_at_a_time(news_mutex_);
    wire::FromMember message;
    message.mutable_heartbeat()->set_metrics(news_.next(Clock::now(), last));
    link()->stream->send(std::move(message));
  }

  void stop() {
    {
      const Lock lock(mutex_);
      stop_ = true;
      bell_.notify_all();
    }
    eventfd_write(stopped_.get(), 1);
    if (thread_.joinable()) thread_.join();
  }

  // ---- calls ----

  /// One call with token and deadline, which ends early when the job fails, and begins anew when another coordinator
  /// has taken the job over.
  template <class Call>
  grpc::Status call(const Deadline& deadline, const Call& run, std::optional<uint64_t> within = std::nullopt) {
    for (Deadline until = deadline;; until = Deadline(deadline.limit())) {
      uint64_t current = 0;
      const grpc::Status status = call_once(until, run, within, current);
      if (status.ok()) return status;
      Lock lock(mutex_);
      if (!failure_ && within && *within < ended_before_.epoch) throw PeerLost(ended_before_.reason);
      const bool cut_off =
          status.error_code() == grpc::StatusCode::UNAVAILABLE || status.error_code() == grpc::StatusCode::CANCELLED;
      // With the connection gone, the stream is about to say so too: one failure, one sentence.
      if (cut_off)
        bell_.wait_for(lock, kLastWords,
                       [&]() TRIREME_REQUIRES(mutex_) { return failure_ || leaving_ || away_ || current_ != current; });
      const bool again = cut_off && (away_ || current_ != current);
      while (again && away_ && !failure_ && !abandoned_ && !leaving_)
        bell_.wait_for(lock, kWhileHeld,
                       [&]() TRIREME_REQUIRES(mutex_) { return !away_ || failure_ || abandoned_ || leaving_; });
      if (failure_) throw PeerLost(failure_->reason);
      if (!again) return status;
    }
  }

  template <class Call>
  grpc::Status call_once(const Deadline& deadline, const Call& run, std::optional<uint64_t> within, uint64_t& current) {
    grpc::ClientContext context;
    context.AddMetadata(kTokenKey, options_.token);
    context.set_deadline(system_time(deadline));
    std::shared_ptr<Link> link;
    {
      const Lock lock(mutex_);
      if (failure_) throw PeerLost(failure_->reason);
      if (leaving_) fail<InvalidArgument>("{} was told goodbye already", coordinator());
      if (within && *within < ended_before_.epoch) throw PeerLost(ended_before_.reason);
      calls_.emplace(&context, within);
      link = link_;
      current = current_;
    }
    const grpc::Status status = run(*link->stub, context);
    const Lock lock(mutex_);
    calls_.erase(&context);
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
  Welcome welcome_;           // as member_
  std::string meeting_;       // as member_
  const std::string secret_;  // shows a coordinator that follows that it is this process that comes back
  const Descriptor stopped_{eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)};
  Mutex news_mutex_;
  MetricsNews news_ TRIREME_GUARDED_BY(news_mutex_);

  mutable Mutex mutex_;
  Condition bell_;
  TRIREME_GUARDED_BY(mutex_) bool welcomed_ = false, placed_ = false, interrupted_ = false, leaving_ = false;
  TRIREME_GUARDED_BY(mutex_) bool farewell_ = false, stop_ = false;
  TRIREME_GUARDED_BY(mutex_) uint64_t attempts_ = 0, current_ = 0, trying_ = 0;  // numbers of connections
  std::optional<grpc::Status> end_ TRIREME_GUARDED_BY(mutex_);                   // of the current one's stream
  std::optional<grpc::Status> trying_end_ TRIREME_GUARDED_BY(mutex_);            // of the one that is tried
  TRIREME_GUARDED_BY(mutex_) bool answered_ = false;                             // the one that is tried
  TRIREME_GUARDED_BY(mutex_) bool away_ = false;       // the coordinator, and another one may follow it
  TRIREME_GUARDED_BY(mutex_) bool abandoned_ = false;  // none will
  TRIREME_GUARDED_BY(mutex_) Clock::time_point away_since_{}, next_try_{};
  Seconds pause_ TRIREME_GUARDED_BY(mutex_){0};
  TRIREME_GUARDED_BY(mutex_) std::optional<wire::FromMember> ready_, confirmation_, goodbye_;  // what was said so far
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
  std::shared_ptr<Link> link_ TRIREME_GUARDED_BY(mutex_);
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
