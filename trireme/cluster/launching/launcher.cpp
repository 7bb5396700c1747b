#include <netinet/in.h>
#include <poll.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <memory>
#include <optional>
#include <random>

#include <trireme/base/descriptor.h>
#include <trireme/base/error.h>
#include <trireme/base/process.h>
#include <trireme/cluster/coordination/coordinator.h>
#include <trireme/cluster/launching/child.h>
#include <trireme/cluster/launching/launcher.h>
#include <trireme/cluster/launching/launcher_metrics.h>
#include <trireme/cluster/launching/local_desk.h>
#include <trireme/cluster/status_door.h>

#include "interruption.h"

namespace trireme::cluster {
namespace {

using Variables = std::vector<std::pair<std::string, std::string>>;

constexpr Seconds kBetweenSignals{0.7};  // from SIGTERM to SIGKILL
constexpr Seconds kAfterFailure{3};  // once they were asked to stop and one has failed, for the others to show progress
constexpr Seconds kMostAfterFailure{60};  // and in all
constexpr Seconds kForPeers{10};          // more than a rank waits for others
constexpr Seconds kAgentsGoodbye{0.7};    // for agents to kill their ranks
constexpr Seconds kAfterRanks{5};         // for servers to end by themselves
constexpr Seconds kAfterAll{1};           // for a stranger that still holds somebody's output open
constexpr Seconds kOneWish{
    0.3};  // timeout(1) and some shells signal the process and then its group: that is one wish, not two
constexpr int kMostServers = 256;
constexpr double kMoment = 0.1;  // seconds between deaths that are seen as one

constexpr const char* kThreadVariables[] = {"OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"};

/// What a rank finds in its environment; `local` is its number here.
Variables variables_of_rank(const LaunchOptions& options, int local) {
  const std::string rank = std::to_string(options.first_rank + local), size = std::to_string(options.size);
  return {{"TRIREME_ROLE", "worker"},
          {"TRIREME_RANK", rank},
          {"TRIREME_SIZE", size},
          {"TRIREME_SERVERS", std::to_string(options.total_servers)},
          {"TRIREME_JOB", options.job},
          {"RANK", rank},
          {"LOCAL_RANK", std::to_string(local)},
          {"WORLD_SIZE", size},
          {"LOCAL_WORLD_SIZE", std::to_string(options.ranks)},
          {"MASTER_ADDR", options.master},
          {"MASTER_PORT", std::to_string(options.master_port)}};
}

std::vector<std::string> environment_of_rank(const LaunchOptions& options, int local) {
  Variables set = options.commands.empty() ? variables_of_rank(options, local) : Variables{};
  const std::string threads =
      std::to_string(options.threads > 0 ? options.threads : std::max(1, usable_cores() / options.ranks));
  for (const char* name : kThreadVariables)
    if (options.threads > 0 || getenv(name) == nullptr) set.emplace_back(name, threads);
  set.insert(set.end(), options.environment.begin(), options.environment.end());
  return options.commands.empty() ? environment_with(set, {"TRIREME_SERVER"}) : environment_with(set, {});
}

std::vector<std::string> environment_of_server(const LaunchOptions& options, int server) {
  Variables set = options.environment;
  set.insert(set.end(), {{"TRIREME_ROLE", "server"},
                         {"TRIREME_SERVER", std::to_string(server)},
                         {"TRIREME_SERVERS", std::to_string(options.total_servers)},
                         {"TRIREME_SIZE", std::to_string(options.size)},
                         {"TRIREME_JOB", options.job}});
  for (const char* name : kThreadVariables) set.emplace_back(name, "1");
  return environment_with(set, {"TRIREME_RANK", "RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE"});
}

constexpr int kCaught[] = {SIGINT, SIGTERM, SIGHUP};

sigset_t caught_signals() {
  sigset_t caught;
  sigemptyset(&caught);
  for (int signal : kCaught) sigaddset(&caught, signal);
  struct sigaction hangup {};
  if (sigaction(SIGHUP, nullptr, &hangup) == 0 && hangup.sa_handler == SIG_IGN)
    sigdelset(&caught, SIGHUP);  // nohup: a closed terminal does not matter
  return caught;
}

class Job {
 public:
  explicit Job(LaunchOptions options) : options_(std::move(options)) {
    const sigset_t caught = caught_signals();
    pthread_sigmask(SIG_BLOCK, &caught, &before_);
    signals_ = Descriptor(signalfd(-1, &caught, SFD_CLOEXEC));
    of_children_ = before_;
    for (int signal : kCaught) sigdelset(&of_children_, signal);
    struct sigaction ignore {};
    ignore.sa_handler = SIG_IGN;
    sigaction(SIGPIPE, &ignore, &broken_pipe_);  // nobody reads our output any more: the job goes on
    children_.resize(ranks() + options_.servers.size());
  }

  ~Job() {
    for (Child& child : children_)
      if (child.pid > 0 && !child.status) {
        kill(-child.pid, SIGKILL);
        waitpid(child.pid, nullptr, 0);
      }
    sigaction(SIGPIPE, &broken_pipe_, nullptr);
    pthread_sigmask(SIG_SETMASK, &before_, nullptr);
  }

  LaunchResult run() {
    if (whole_job_here()) desk_.emplace(options_.job, options_.ranks, options_.on_loss);
    for (size_t i = 0; i < options_.servers.size(); i++)
      children_[ranks() + i] = start_child(server(options_.servers[i]));
    for (size_t i = 0; i < ranks(); i++) children_[i] = start_child(rank(static_cast<int>(i)));
    count_.started.add(static_cast<double>(children_.size()));
    if (options_.commands.empty() && options_.failed < 0) open_status_door();
    while (anything_open()) {
      if (all_ended() && !std::exchange(drains_, true))
        press_after(end_ ? std::min(kAfterAll, Seconds(*end_ - Clock::now())) : kAfterAll);
      wait_for_events();
      if (end_ && Clock::now() >= *end_) {
        if (drains_) break;
        if (!goes_on()) escalate();
      }
    }
    return result();
  }

 private:
  // ---- who is who: children_ has the ranks first, then the servers ----

  size_t ranks() const { return static_cast<size_t>(options_.ranks); }
  bool is_server(size_t index) const { return index >= ranks(); }
  /// Otherwise there is a coordinator, whom agents have told the ranks of.
  bool whole_job_here() const {
    return options_.commands.empty() && options_.failed < 0 && options_.size == options_.ranks &&
           std::none_of(options_.environment.begin(), options_.environment.end(),
                        [](const auto& entry) { return entry.first == "TRIREME_COORDINATOR"; }) &&
           getenv("TRIREME_COORDINATOR") == nullptr;
  }

  ChildOptions rank(int local) const {
    const int rank = options_.first_rank + local;
    const auto index = static_cast<size_t>(local);
    return {.name = options_.names.empty() ? fmt::format("rank {}", rank) : options_.names[index],
            .command = options_.commands.empty() ? options_.command : options_.commands[index],
            .environment = environment_of_rank(options_, local),
            .input = options_.input,
            .prefix = options_.show == Show::labelled ? fmt::format("[{}] ", rank) : "",
            .shown = options_.show != Show::first || rank == 0,
            .slate = options_.commands.empty(),
            .keeper = options_.commands.empty() ? &keeper_ : nullptr,
            .desk = desk_ ? desk_->variable() : "",
            .signals = of_children_,
            .broken_pipe = broken_pipe_};
  }

  ChildOptions server(int server) const {
    const std::string name = fmt::format("server {}", server);
    return {.name = name,
            .command = options_.server_command,
            .environment = environment_of_server(options_, server),
            .prefix = options_.show == Show::labelled ? fmt::format("[{}] ", name) : "",
            .shown = options_.show != Show::first,
            .signals = of_children_,
            .broken_pipe = broken_pipe_};
  }

  bool ended(size_t begin, size_t end) const {
    return std::all_of(children_.begin() + static_cast<ptrdiff_t>(begin),
                       children_.begin() + static_cast<ptrdiff_t>(end),
                       [](const Child& child) { return child.status.has_value(); });
  }
  bool ranks_ended() const { return ended(0, ranks()); }
  bool all_ended() const { return ended(0, children_.size()); }

  bool anything_open() const {
    return std::any_of(children_.begin(), children_.end(), [](const Child& child) {
      return !child.status ||
             std::any_of(child.streams.begin(), child.streams.end(), [](const Pipe& s) { return s.descriptor() >= 0; });
    });
  }

  /// Who starts a whole job answers for it; of a part of one, its coordinator knows more.
  void open_status_door() {
    const MemberMetrics own{
        job_id(options_.job), {.kind = Member::agent, .host = own_host_name(), .pid = getpid()}, {}, 0};
    door_ = std::make_unique<StatusDoor>([this, own] {
      MemberMetrics now = own;
      now.snapshot = registry_.snapshot();
      return std::vector{now};
    });
  }

  // ---- what happens ----

  void wait_for_events() {
    std::vector<pollfd> polls = {{signals_.get(), POLLIN, 0},
                                 {failed_elsewhere_ ? -1 : options_.failed, POLLIN, 0},
                                 {hung_up_ ? -1 : options_.hangup, POLLIN, 0},
                                 {servers_alone_ && !others_ended_ ? options_.others_ended : -1, POLLIN, 0}};
    const size_t first = polls.size();
    for (const Child& child : children_) {
      polls.push_back({child.status ? -1 : child.process.get(), POLLIN, 0});
      for (const Pipe& stream : child.streams) polls.push_back({stream.descriptor(), POLLIN, 0});
    }
    const int limit = end_ ? static_cast<int>(std::max(0.0, Seconds(*end_ - Clock::now()).count()) * 1e3) + 1 : -1;
    if (poll(polls.data(), polls.size(), limit) <= 0) return;
    if (polls[0].revents != 0) forward_signal();
    if (polls[1].revents != 0) end_for_failure_elsewhere();
    if (polls[2].revents != 0) read_wish();
    if (polls[3].revents != 0) end_servers_soon();
    size_t place = first;
    for (Child& child : children_) {  // output first: the last words belong to the death that follows
      place++;
      for (Pipe& stream : child.streams)
        if (polls[place++].revents != 0) stream.pump(child.lines);
    }
    place = first;
    for (size_t index = 0; index < children_.size(); index++) {
      if (polls[place].revents != 0) reap(index);
      place += 1 + children_[index].streams.size();
    }
  }

  void reap(size_t index) {
    Child& child = children_[index];
    int status = 0;
    if (waitpid(child.pid, &status, WNOHANG) != child.pid) return;
    child.status = status;
    count_.ended.add();
    if (status != 0) count_.deaths.add();
    child.ended = seconds_since(begin_);
    child.pressed = asked_;
    kill(-child.pid, SIGKILL);  // whatever it started itself
    note_end(index);
    if (!is_server(index) && ranks_ended()) leave_servers_alone();
  }

  void note_end(size_t index) {
    if (*children_[index].status == 0 || (is_server(index) && asked_))
      return;  // a server that had to be asked has lost nothing
    failed_.push_back(index);
    if (others_go_on(index)) return;
    if (!end_)
      press_after(options_.grace);
    else if (progress_ && failed_.size() == 1)
      press_after(kAfterFailure);
  }

  /// By the policy, and there are some, or they have come to a good end.
  bool others_go_on(size_t index) const {
    if (options_.on_loss != OnLoss::change_crew || is_server(index) || end_) return false;
    return std::any_of(children_.begin(), children_.begin() + static_cast<ptrdiff_t>(ranks()),
                       [](const Child& child) { return !child.status || *child.status == 0; });
  }

  void say(const std::string& sentence) const {
    if (options_.say) options_.say(sentence);
  }

  void forward_signal() {
    signalfd_siginfo info{};
    if (read(signals_.get(), &info, sizeof info) != sizeof info) return;
    const auto signal = static_cast<int>(info.ssi_signo);
    if (interrupted_ != 0 && (signal == SIGHUP || seconds_since(interrupted_at_) < kOneWish.count()))
      return;  // a closed terminal is no second wish
    if (interrupted_ == 0) say(stop_sentence(signal, options_.saves));
    interrupt(signal);
  }

  /// From whoever started this process, who tells the user.
  void read_wish() {
    char words[64];
    const ssize_t got = read(options_.hangup, words, sizeof words);
    if (got < 0 && (errno == EINTR || errno == EAGAIN)) return;
    hung_up_ = got <= 0;
    const bool end =
        got > 0 && std::string_view(words, static_cast<size_t>(got)).find(kEndWord) != std::string_view::npos;
    if (interrupted_ == 0) interrupt(SIGINT);
    if (end || (hung_up_ && told_to_stop_)) interrupt(SIGINT);
    told_to_stop_ = true;
  }

  /// Servers are not told the first time: the ranks finish their update with them, and save.
  void interrupt(int signal) {
    const bool again = interrupted_ != 0;
    interrupted_at_ = Clock::now();
    interrupted_ = signal;
    if (again) return end_at_once();
    asked_to_stop_at_ = slate_now();
    progress_.emplace(children_);
    if (servers_alone_ && (others_ended_ || options_.others_ended < 0)) {
      escalate();
    } else {
      tell_to_stop(signal);
    }
    if (!end_) press_after(patience());
  }

  void tell_to_stop(int signal) {
    for (size_t index = 0; index < ranks(); index++) {
      const Child& child = children_[index];
      if (child.status) continue;
      if (child.input) {
        [[maybe_unused]] const auto written = write(child.input.get(), kStopWord, std::strlen(kStopWord));
        continue;
      }
      ask_to_stop(child.pid, signal);
      kill(-child.pid, SIGCONT);  // a stopped process takes its signal only when it goes on
    }
  }

  /// Agents kill their own ranks, which nobody else can.
  void end_at_once() {
    asked_ = at_once_ = true;
    bool agents = false;
    for (const Child& child : children_)
      if (child.input && !child.status) agents |= write(child.input.get(), kEndWord, std::strlen(kEndWord)) > 0;
    if (!agents) signal_to(SIGKILL, children_.size());
    press_after(kAgentsGoodbye);
  }

  /// The ranks have been told too, and end by themselves; those who do not are helped.
  void end_for_failure_elsewhere() {
    failed_elsewhere_ = true;
    if (!end_ || (progress_ && !asked_)) press_after(options_.grace);
  }

  /// Whether ranks that were asked to stop get on with it: then they have more time.
  bool goes_on() {
    if (!progress_ || asked_ || failed_elsewhere_ || ranks_ended()) return false;
    const bool in_time =
        failed_.empty() || seconds_since(begin_) - children_[failed_.front()].ended < kMostAfterFailure.count();
    if (in_time && (options_.alive ? options_.alive() : progress_->made())) {
      press_after(patience());
      return true;
    }
    if (failed_.empty())
      say(fmt::format("{} made no progress for {:.0f} s after being asked to stop: ended now",
                      unended({children_.data(), ranks()}), patience().count()));
    return false;
  }

  /// Ranks on other machines are waited for by those here, who do nothing meanwhile.
  Seconds patience() const {
    if (!failed_.empty()) return kAfterFailure;
    Seconds result = options_.patience;
    if (options_.size > options_.ranks)
      for (const Child& child : children_) result = std::max(result, Seconds(child.slate.patience()) + kForPeers);
    return result;
  }

  // ---- pressing ----

  void press_after(Seconds time) { end_ = Clock::now() + std::chrono::duration_cast<Clock::duration>(time); }

  /// The servers see by themselves that all ranks have left. After a failure they have had their time already; ranks
  /// elsewhere may still need them.
  void leave_servers_alone() {
    servers_alone_ = true;
    if (options_.ranks_ended) options_.ranks_ended();
    if (all_ended() || (end_ && interrupted_ == 0)) return;
    asked_ = false;
    if (options_.others_ended < 0 || others_ended_)
      press_after(kAfterRanks);
    else
      end_.reset();
  }

  void end_servers_soon() {
    others_ended_ = true;
    if (!end_) press_after(kAfterRanks);
  }

  /// To the first `count` children.
  void signal_to(int signal, size_t count) {
    for (size_t index = 0; index < count; index++) {
      const Child& child = children_[index];
      if (child.status) continue;
      kill(-child.pid, signal);
      kill(-child.pid, SIGCONT);  // a stopped process takes its signal only when it goes on
    }
  }

  /// Ranks that were interrupted have their servers to the end.
  void escalate() {
    const bool spares_servers = interrupted_ != 0 && failed_.empty() && !servers_alone_;
    signal_to(std::exchange(asked_, true) ? SIGKILL : SIGTERM, spares_servers ? ranks() : children_.size());
    press_after(kBetweenSignals);
  }

  // ---- the end ----

  /// Who died first. Deaths that were seen within a moment of each other are told apart by kind: a kill is a cause, an
  /// error exit may be its consequence.
  std::optional<size_t> culprit() const {
    if (failed_.empty()) return std::nullopt;
    const double first = children_[failed_.front()].ended;
    for (size_t index : failed_) {
      const Child& child = children_[index];
      if (!child.pressed && child.ended < first + kMoment && WIFSIGNALED(*child.status) &&
          WTERMSIG(*child.status) != SIGABRT)
        return index;
    }
    std::optional<size_t> best;
    for (size_t index : failed_) {
      const Child& child = children_[index];
      if (child.pressed || child.victim()) continue;
      if (!best || before(index, *best)) best = index;
    }
    return best ? best : failed_.front();
  }

  /// Of two that failed by themselves: is the first one rather the cause? One error that all ranks find is told by the
  /// lowest.
  bool before(size_t a, size_t b) const {
    const Child &one = children_[a], &other = children_[b];
    const bool same = one.uncaught() == other.uncaught();
    if (!same && one.failed_at() > 0 && other.failed_at() > 0) return one.failed_at() < other.failed_at();
    return one.ended < other.ended + kMoment && a < b;
  }

  /// Those who were left behind by ranks that went on to a good end without them.
  bool good_end() const {
    return options_.on_loss == OnLoss::change_crew && interrupted_ == 0 &&
           std::all_of(failed_.begin(), failed_.end(), [&](size_t index) { return !is_server(index); }) &&
           std::any_of(children_.begin(), children_.begin() + static_cast<ptrdiff_t>(ranks()),
                       [](const Child& child) { return child.status && *child.status == 0; });
  }

  LaunchResult result() const {
    LaunchResult result;
    if (good_end()) {
      for (size_t index : failed_) result.left_behind.push_back(options_.first_rank + static_cast<int>(index));
      return result;
    }
    result.interrupted = interrupted_ != 0;
    result.failed = !failed_.empty();
    if (result.interrupted) {
      result.exit_code = 128 + interrupted_;
      if (options_.commands.empty() && options_.first_rank == 0)
        result.lost = lost_sentence(children_, asked_to_stop_at_, options_.saves, at_once_);
    }
    const auto index = culprit();
    if (!index || result.interrupted) return result;
    const Child& child = children_[*index];
    if (is_server(*index))
      result.failed_server = options_.servers[*index - ranks()];
    else
      result.first_failed = (options_.commands.empty() ? options_.first_rank : 0) + static_cast<int>(*index);
    result.exit_code = child.victim() ? kPeerLostExit : child.exit_code();
    result.culprit = child.name;
    result.reason = fmt::format("{} (process {}) died first: {} (after {:.1f} s)", child.name, child.pid,
                                child.how_it_ended(), child.ended);
    result.last_lines.assign(child.lines.last.begin(), child.lines.last.end());
    return result;
  }

  LaunchOptions options_;
  const Keeper keeper_;            // of the memory that the ranks share
  std::optional<LocalDesk> desk_;  // of a job that is all here
  std::vector<Child> children_;
  std::vector<size_t> failed_;  // in the order in which they were seen
  sigset_t before_{}, of_children_{};
  struct sigaction broken_pipe_ {};
  Descriptor signals_;
  Clock::time_point begin_ = Clock::now();
  std::optional<Clock::time_point> end_;  // when to press harder
  bool asked_ = false;                    // SIGTERM was sent
  bool failed_elsewhere_ = false, hung_up_ = false;
  bool servers_alone_ = false;        // all ranks started here have ended
  bool others_ended_ = false;         // and the ranks elsewhere too
  bool drains_ = false;               // all have ended, and some output has not
  std::optional<Progress> progress_;  // since they were asked to stop
  double asked_to_stop_at_ = 0;       // on the clock of slates
  bool told_to_stop_ = false;         // by whoever started this process
  bool at_once_ = false;              // they were asked again
  int interrupted_ = 0;
  Clock::time_point interrupted_at_;
  metrics::Registry registry_;
  LauncherMetrics count_{registry_};
  std::unique_ptr<StatusDoor> door_;  // last: its thread uses the registry
};

/// The servers of this launcher, and how many there are in all.
void check_servers(LaunchOptions& options) {
  if (options.total_servers == 0) options.total_servers = static_cast<int>(options.servers.size());
  if (options.total_servers < 0 || options.total_servers > kMostServers)
    fail<InvalidArgument>("the number of servers must be 0 to {}, not {}", kMostServers, options.total_servers);
  if (options.servers.empty()) return;
  if (options.server_command.empty())
    fail<InvalidArgument>("{} servers are to be launched, but there is no program for them", options.servers.size());
  if (!options.commands.empty())
    fail<InvalidArgument>("servers are launched beside ranks, and these processes are none");
  std::vector<int> sorted = options.servers;
  std::sort(sorted.begin(), sorted.end());
  if (sorted.front() < 0 || sorted.back() >= options.total_servers ||
      std::adjacent_find(sorted.begin(), sorted.end()) != sorted.end())
    fail<InvalidArgument>("servers to launch must be different, and from 0 to {}", options.total_servers - 1);
}

}  // namespace

SignalsForLauncher::SignalsForLauncher() {
  const sigset_t caught = caught_signals();
  pthread_sigmask(SIG_BLOCK, &caught, &before_);
}

SignalsForLauncher::~SignalsForLauncher() { pthread_sigmask(SIG_SETMASK, &before_, nullptr); }

std::string random_name() {
  std::random_device source;
  return fmt::format("{:08x}{:08x}", source(), source());
}

int free_port() {
  const Descriptor socket_(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof address;
  if (bind(socket_.get(), reinterpret_cast<sockaddr*>(&address), size) != 0) return 29500;
  getsockname(socket_.get(), reinterpret_cast<sockaddr*>(&address), &size);
  return ntohs(address.sin_port);
}

LaunchResult launch(const LaunchOptions& given) {
  LaunchOptions options = given;
  if (!options.commands.empty()) options.ranks = static_cast<int>(options.commands.size());
  if (options.command.empty() && options.commands.empty())
    fail<InvalidArgument>("nothing to launch: give a program after --");
  if (options.ranks < 1 || options.ranks > 256)
    fail<InvalidArgument>("the number of ranks must be 1 to 256, not {}", options.ranks);
  check_servers(options);
  if (options.size == 0) options.size = options.ranks;
  if (options.job.empty()) options.job = random_name();
  if (options.master_port == 0) options.master_port = free_port();
  return Job(std::move(options)).run();
}

}  // namespace trireme::cluster
