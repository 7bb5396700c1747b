// The agent of a host: registers, starts its ranks, and tells the others how they ended.
#include <poll.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <optional>
#include <thread>
#include <utility>

#include <trireme/base/descriptor.h>
#include <trireme/base/error.h>
#include <trireme/base/lock.h>
#include <trireme/base/process.h>
#include <trireme/cluster/coordination/coordinator.h>
#include <trireme/cluster/coordination/session.h>
#include <trireme/cluster/launching/hosts.h>

namespace trireme::cluster {
namespace {

constexpr Seconds kBetweenLooks{0.5};  // at signals, while hosts are waited for

/// It came when the job was under way: its ranks are beyond those of the start.
bool is_late(const Session& session) { return session.rank() >= session.size(); }

/// Who is in the crew, as the session hears it. Of an agent, `target` are its own ranks.
CrewView crew_of(const Session& session) {
  CrewView view{
      .target = session.slots(), .more = session.more(), .complete = true, .over = session.dismissal().has_value()};
  for (int rank = 0; rank < session.size(); rank++) view.ranks.push_back(rank);
  for (const CrewChange& change : session.crews()) {
    view.lost.insert(view.lost.end(), change.lost.begin(), change.lost.end());
    if (!change.ranks.empty()) {  // otherwise they wait for newcomers
      view.epoch = change.epoch;
      view.ranks = change.ranks;
      view.closing = change.closing;
    }
  }
  if (const auto failure = session.failure()) view.failure = failure->reason;
  return view;
}

/// Where programs with torchrun's variables meet: a port that is free on the host of rank 0.
std::string meeting_point(Session& session, Seconds timeout) {
  if (session.rank() == 0) session.put("torchrun meeting point", fmt::format("{}:{}", session.address(), free_port()));
  return session.get("torchrun meeting point", Deadline(timeout));
}

/// Signals, and what whoever started this agent says on its standard input. launch() takes both later. Until then they
/// are held, and who waits has to look.
class Wishes {
 public:
  explicit Wishes(bool watch_input) {
    sigset_t set;
    sigemptyset(&set);
    for (int signal : {SIGINT, SIGTERM, SIGHUP}) sigaddset(&set, signal);
    signals_ = Descriptor(signalfd(-1, &set, SFD_CLOEXEC));
    watch(signals_.get());
    if (watch_input) watch(0);
  }

  /// Readable while there is one. It is never read: the wish stays for whoever takes it.
  int descriptor() const { return any_.get(); }
  bool any() const {
    pollfd look{any_.get(), POLLIN, 0};
    return poll(&look, 1, 0) > 0;
  }

 private:
  /// A file as standard input cannot be watched, and says nothing.
  void watch(int descriptor) const {
    epoll_event event{.events = EPOLLIN, .data = {}};
    epoll_ctl(any_.get(), EPOLL_CTL_ADD, descriptor, &event);
  }

  Descriptor signals_;
  Descriptor any_{epoll_create1(EPOLL_CLOEXEC)};
};

bool came(Session& session, const std::string& key, Seconds within) {
  try {
    session.get(key, Deadline(within));
    return true;
  } catch (const Timeout&) {
    return false;
  }
}

/// Ranks are started when the agents of all hosts are there: so it is the host that does not come that is named, and
/// not its ranks.
void wait_for_hosts(Session& session, const AgentOptions& options, const Wishes& wishes) {
  session.put(fmt::format("agent/{}", session.rank()), "");
  const Deadline deadline(options.timeout);
  int first = 0;
  for (const auto& [host, slots] : session.spec().hosts) {
    const std::string key = fmt::format("agent/{}", std::exchange(first, first + slots));
    while (!came(session, key, std::min(kBetweenLooks, deadline.left()))) {
      if (wishes.any())
        fail<PeerLost>("the agent of host {} was interrupted while it waited for host {}", own_host_name(),
                       host);  // by a launcher that knows why
      if (deadline.passed())
        fail<Timeout>(
            "host {} has not joined the job within {:g} s: is it up, was `trireme join` started there, and can it "
            "reach the coordinator at {}?",
            host, options.timeout.count(), options.coordinator);
    }
  }
}

/// The servers of this host: those whose number leaves its place in the host list, divided by the number of hosts.
std::vector<int> servers_here(const Session& session) {
  const auto& hosts = session.spec().hosts;
  std::vector<int> servers;
  if (session.spec().server_command.empty()) return servers;
  int first = 0, place = 0;
  for (; place < static_cast<int>(hosts.size()) && first != session.rank(); place++)
    first += hosts[static_cast<size_t>(place)].second;
  for (int server = place; server < session.servers(); server += static_cast<int>(hosts.size()))
    servers.push_back(server);
  return servers;
}

/// Tells the other agents when the ranks of this one have ended, and waits for the same news of them: until then they
/// need the servers here.
class Goodbyes {
 public:
  explicit Goodbyes(Session& session) : session_(session), thread_([this] { run(); }) {}
  /// Others hear of ranks that have ended; news of others is no longer waited for.
  ~Goodbyes() {
    notify(&Goodbyes::stop_);
    thread_.join();
  }
  Goodbyes(const Goodbyes&) = delete;
  Goodbyes& operator=(const Goodbyes&) = delete;

  /// Does not block.
  void own_ranks_ended() { notify(&Goodbyes::own_ended_); }
  /// Readable when the ranks of all hosts have ended.
  int descriptor() const { return all_ended_.get(); }

 private:
  void notify(bool Goodbyes::*what) {
    const Lock lock(mutex_);
    this->*what = true;
    bell_.notify_all();
  }
  bool stopped() {
    const Lock lock(mutex_);
    return stop_;
  }

  void run() try {
    name_thread("trireme-goodbye");
    {
      Lock lock(mutex_);
      bell_.wait(lock, [&]() TRIREME_REQUIRES(mutex_) { return own_ended_ || stop_; });
      if (!own_ended_) return;
    }
    session_.put(fmt::format("ranks ended/{}", session_.rank()), "");
    int first = 0;
    for (const auto& [host, slots] : session_.spec().hosts) {
      const std::string key = fmt::format("ranks ended/{}", std::exchange(first, first + slots));
      while (!came(session_, key, kBetweenLooks))
        if (stopped()) return;
    }
    eventfd_write(all_ended_.get(), 1);
  } catch (const Error&) {
    // The job has failed, and the launcher hears that from the session.
  }

  Session& session_;
  const Descriptor all_ended_{eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)};
  Mutex mutex_;
  Condition bell_;
  TRIREME_GUARDED_BY(mutex_) bool own_ended_ = false, stop_ = false;
  std::thread thread_;  // last: it uses what stands above
};

/// What has to be right before ranks are started; the others hear what is not.
std::string prepare(Session& session, const AgentOptions& options, const Wishes& wishes) try {
  if (session.spec().command.empty())
    fail<InvalidArgument>(
        "host {}: the coordinator at {} has nothing for agents to start: it serves ranks that are started one by one, "
        "with TRIREME_RANK. `trireme train "
        "--hosts ... "
        "--remote none` is what `trireme join` joins",
        own_host_name(), options.coordinator);
  if (!is_late(session)) wait_for_hosts(session, options, wishes);
  return meeting_point(session, options.timeout);
} catch (const PeerLost&) {
  session.leave(kPeerLostExit);
  throw;
} catch (const Error& error) {
  session.leave(1, error.what());
  throw;
}

}  // namespace

LaunchResult run_agent(const AgentOptions& options) {
  const SignalsForLauncher signals;
  const Descriptor failed(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  const Wishes wishes(options.watch_input);
  Session session({.coordinator = options.coordinator,
                   .token = options.token,
                   .tls = options.tls,
                   .timeout = options.timeout,
                   .interrupt = wishes.descriptor()},
                  {.kind = Member::agent,
                   .slots = options.slots,
                   .host = options.host.empty() ? own_host_name() : options.host,
                   .pid = getpid()});
  session.on_failure([&](const Failure&) {
    const uint64_t one = 1;
    [[maybe_unused]] const auto written = write(failed.get(), &one, sizeof one);
  });
  const Descriptor crew_changed(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  session.on_crew([&](const CrewChange&) { eventfd_write(crew_changed.get(), 1); });
  session.on_wish([&] { eventfd_write(crew_changed.get(), 1); });
  const std::string meeting = prepare(session, options, wishes);
  const size_t colon = meeting.rfind(':');
  LaunchOptions launched{.command = session.spec().command,
                         .ranks = session.slots(),
                         .show = static_cast<Show>(session.spec().show),
                         .environment = session.spec().environment,
                         .elasticity = {.on_failure = static_cast<OnFailure>(session.spec().on_failure),
                                        .least = 1,
                                        .most = session.slots()},
                         .first_rank = session.rank(),
                         .newcomers = is_late(session),
                         .size = session.size(),
                         .job = session.job(),
                         .master = meeting.substr(0, colon),
                         .master_port = static_cast<int>(
                             comm::network::number_under("the ranks' meeting point", meeting.substr(colon + 1))),
                         .failed = failed.get(),
                         .crew =
                             [&] {
                               eventfd_t rung = 0;
                               eventfd_read(crew_changed.get(), &rung);
                               return crew_of(session);
                             },
                         .crew_changed = crew_changed.get(),
                         .hangup = options.watch_input ? 0 : -1,
                         .say = options.say,
                         .server_command = session.spec().server_command,
                         .servers = servers_here(session),
                         .total_servers = session.servers()};
  launched.environment.emplace_back("TRIREME_COORDINATOR", options.coordinator);
  launched.environment.emplace_back("TRIREME_TOKEN", options.token);
  if (!options.tls.empty()) launched.environment.emplace_back("TRIREME_TLS", options.tls);
  std::optional<Goodbyes> goodbyes;
  if (launched.total_servers > 0) {
    goodbyes.emplace(session);
    launched.ranks_ended = [&] { goodbyes->own_ranks_ended(); };
    launched.others_ended = goodbyes->descriptor();
  }
  LaunchResult result = launch(launched);
  goodbyes.reset();
  std::string reason = result.reason;
  for (const std::string& line : result.last_lines) reason += "\n  " + line;
  if (result.interrupted) reason = "it was interrupted";
  session.leave(result.failed ? result.exit_code : 0, reason, result.first_failed, result.failed_server);
  if (const auto failure = session.failure(); failure && result.exit_code == kPeerLostExit) {
    result.reason = failure->reason;
    result.last_lines.clear();
  }
  return result;
}

}  // namespace trireme::cluster
