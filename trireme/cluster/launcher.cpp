#include <trireme/cluster/launcher.h>

#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/wait.h>

#include <trireme/base/descriptor.h>
#include <trireme/base/error.h>
#include <trireme/base/process.h>
#include <algorithm>
#include <array>
#include <csignal>
#include <cstring>
#include <deque>
#include <optional>
#include <random>

namespace trireme::cluster {
namespace {

constexpr size_t kLastLines = 8;
constexpr Seconds kBetweenSignals{0.7};  // from SIGTERM to SIGKILL

/// One pipe of one rank: cuts it into lines, passes them on, remembers the last ones.
class Stream {
 public:
  /// `sink` -1 remembers only.
  Stream(Descriptor source, int sink, std::string prefix) : source_(std::move(source)), sink_(sink), prefix_(std::move(prefix)) {}

  int descriptor() const { return source_.get(); }

  /// Reads what is there. At the end of the stream the descriptor becomes -1.
  void pump(std::deque<std::string>& last) {
    std::array<char, 1 << 14> buffer{};
    const ssize_t got = read(source_.get(), buffer.data(), buffer.size());
    if (got < 0 && (errno == EINTR || errno == EAGAIN)) return;
    if (got <= 0) {
      if (!line_.empty()) end_line(last, prefix_.empty() ? "" : "\n");
      source_.reset();
      return;
    }
    const std::string_view bytes(buffer.data(), static_cast<size_t>(got));
    if (prefix_.empty()) put(bytes);
    for (char c : bytes) c == '\n' ? end_line(last, "\n") : void(line_ += c);
  }

 private:
  void end_line(std::deque<std::string>& last, const char* ending) {
    if (!prefix_.empty()) put(prefix_ + line_ + ending);
    const size_t shown = line_.rfind('\r');  // a progress line: only what stayed on the screen
    last.push_back(shown == std::string::npos ? line_ : line_.substr(shown + 1));
    if (last.size() > kLastLines) last.pop_front();
    line_.clear();
  }

  void put(std::string_view text) const {
    while (!text.empty() && sink_ >= 0) {
      const ssize_t done = write(sink_, text.data(), text.size());
      if (done < 0 && errno != EINTR) return;  // nobody reads us
      if (done > 0) text.remove_prefix(static_cast<size_t>(done));
    }
  }

  Descriptor source_;
  int sink_;
  std::string prefix_, line_;
};

struct Child {
  pid_t pid = 0;
  Descriptor process;
  Descriptor input;  // the other end of its standard input
  std::vector<Stream> streams;
  std::deque<std::string> last;
  std::optional<int> status;  // of waitpid, once it ended
  double ended = 0;           // seconds after the start
  bool pressed = false;       // it ended after we had asked it to
};

std::vector<std::string> environment_of(const LaunchOptions& options, int local) {
  const std::string threads = std::to_string(options.threads > 0 ? options.threads : std::max(1, usable_cores() / options.ranks));
  std::vector<std::pair<std::string, std::string>> set;
  if (options.commands.empty())
    set = {{"TRIREME_RANK", std::to_string(options.first_rank + local)},
           {"TRIREME_SIZE", std::to_string(options.size)},
           {"TRIREME_JOB", options.job},
           {"RANK", std::to_string(options.first_rank + local)},
           {"LOCAL_RANK", std::to_string(local)},
           {"WORLD_SIZE", std::to_string(options.size)},
           {"LOCAL_WORLD_SIZE", std::to_string(options.ranks)},
           {"MASTER_ADDR", options.master},
           {"MASTER_PORT", std::to_string(options.master_port)}};
  for (const char* name : {"OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"})
    if (options.threads > 0 || getenv(name) == nullptr) set.emplace_back(name, threads);
  set.insert(set.end(), options.environment.begin(), options.environment.end());

  std::vector<std::string> result;
  for (char** entry = environ; *entry != nullptr; entry++) {
    const std::string_view text = *entry;
    const auto same_name = [&](const auto& pair) { return text.substr(0, text.find('=')) == pair.first; };
    if (std::none_of(set.begin(), set.end(), same_name)) result.emplace_back(text);
  }
  for (const auto& [name, value] : set) result.push_back(fmt::format("{}={}", name, value));
  return result;
}

std::vector<char*> pointers(std::vector<std::string>& texts) {
  std::vector<char*> result;
  result.reserve(texts.size() + 1);
  for (std::string& text : texts) result.push_back(text.data());
  result.push_back(nullptr);
  return result;
}

std::pair<Descriptor, Descriptor> open_pipe() {
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) fail<IoError>("cannot open a pipe: {}", errno_text());
  return {Descriptor(ends[0]), Descriptor(ends[1])};
}

/// Between fork and exec: only calls that are safe there.
[[noreturn]] void become(char** command, char** environment, int in, int out, int error, pid_t parent, const sigset_t& signals,
                         const struct sigaction& broken_pipe) {
  setpgid(0, 0);
  prctl(PR_SET_PDEATHSIG, SIGKILL);  // no rank outlives the launcher
  if (getppid() != parent) _exit(125);
  sigprocmask(SIG_SETMASK, &signals, nullptr);
  sigaction(SIGPIPE, &broken_pipe, nullptr);
  dup2(in >= 0 ? in : open("/dev/null", O_RDONLY | O_CLOEXEC), 0);
  dup2(out, 1);
  dup2(error, 2);
  environ = environment;
  execvp(command[0], command);
  const char* text = std::strerror(errno);
  for (const char* part : {"trireme: cannot start ", static_cast<const char*>(command[0]), ": ", text, "\n"})
    if (write(2, part, std::strlen(part)) < 0) break;
  _exit(127);
}

constexpr int kCaught[] = {SIGINT, SIGTERM, SIGHUP};

sigset_t caught_signals() {
  sigset_t caught;
  sigemptyset(&caught);
  for (int signal : kCaught) sigaddset(&caught, signal);
  return caught;
}

class Job {
 public:
  explicit Job(LaunchOptions options) : options_(std::move(options)), children_(static_cast<size_t>(options_.ranks)) {
    const sigset_t caught = caught_signals();
    pthread_sigmask(SIG_BLOCK, &caught, &before_);
    signals_ = Descriptor(signalfd(-1, &caught, SFD_CLOEXEC));
    of_children_ = before_;
    for (int signal : kCaught) sigdelset(&of_children_, signal);
    struct sigaction ignore {};
    ignore.sa_handler = SIG_IGN;
    sigaction(SIGPIPE, &ignore, &broken_pipe_);  // nobody reads our output any more: the job goes on
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
    for (int rank = 0; rank < options_.ranks; rank++) start(rank);
    while (anything_open()) {
      const bool all_ended = std::all_of(children_.begin(), children_.end(), [](const Child& child) { return child.status.has_value(); });
      if (all_ended && !end_) end_ = Clock::now() + std::chrono::seconds(1);  // for a stranger that still holds a rank's output open
      wait_for_events();
      if (end_ && Clock::now() >= *end_) {
        if (all_ended) break;
        escalate();
      }
    }
    return result();
  }

 private:
  std::string name_of(int index) const {
    return options_.names.empty() ? fmt::format("rank {}", options_.first_rank + index) : options_.names[static_cast<size_t>(index)];
  }

  void start(int rank) {
    Child& child = children_[static_cast<size_t>(rank)];
    auto [out_read, out_write] = open_pipe();
    auto [error_read, error_write] = open_pipe();
    Descriptor in_read;
    if (!options_.input.empty()) {
      std::tie(in_read, child.input) = open_pipe();
      if (write(child.input.get(), options_.input.data(), options_.input.size()) < 0) fail<IoError>("cannot write to {}: {}", name_of(rank), errno_text());
    }
    std::vector<std::string> command = options_.commands.empty() ? options_.command : options_.commands[static_cast<size_t>(rank)];
    std::vector<std::string> environment = environment_of(options_, rank);
    std::vector<char*> argv = pointers(command), envp = pointers(environment);
    const pid_t parent = getpid();
    child.pid = fork();
    if (child.pid < 0) fail<IoError>("cannot start {}: {}", name_of(rank), errno_text());
    if (child.pid == 0) become(argv.data(), envp.data(), in_read.get(), out_write.get(), error_write.get(), parent, of_children_, broken_pipe_);
    setpgid(child.pid, child.pid);
    child.process = open_process(child.pid);
    const bool silent = options_.show == Show::first && options_.first_rank + rank > 0;
    const std::string prefix = options_.show == Show::labelled ? fmt::format("[{}] ", options_.first_rank + rank) : "";
    child.streams.emplace_back(std::move(out_read), silent ? -1 : 1, prefix);
    child.streams.emplace_back(std::move(error_read), silent ? -1 : 2, prefix);
  }

  bool anything_open() const {
    return std::any_of(children_.begin(), children_.end(), [](const Child& child) {
      return !child.status || std::any_of(child.streams.begin(), child.streams.end(), [](const Stream& s) { return s.descriptor() >= 0; });
    });
  }

  void wait_for_events() {
    std::vector<pollfd> polls = {{signals_.get(), POLLIN, 0}, {failed_elsewhere_ ? -1 : options_.failed, POLLIN, 0}, {hung_up_ ? -1 : options_.hangup, 0, 0}};
    for (const Child& child : children_) {
      polls.push_back({child.status ? -1 : child.process.get(), POLLIN, 0});
      for (const Stream& stream : child.streams) polls.push_back({stream.descriptor(), POLLIN, 0});
    }
    const int limit = end_ ? static_cast<int>(std::max(0.0, Seconds(*end_ - Clock::now()).count()) * 1e3) + 1 : -1;
    if (poll(polls.data(), polls.size(), limit) <= 0) return;
    if (polls[0].revents != 0) forward_signal();
    if (polls[1].revents != 0) end_for_failure_elsewhere();
    if (polls[2].revents != 0 && !std::exchange(hung_up_, true)) interrupt(SIGINT);
    size_t index = 3;
    for (Child& child : children_) {  // output first: the last words belong to the death that follows
      index++;
      for (Stream& stream : child.streams)
        if (polls[index++].revents != 0) stream.pump(child.last);
    }
    index = 3;
    for (size_t rank = 0; rank < children_.size(); rank++) {
      if (polls[index].revents != 0) reap(static_cast<int>(rank));
      index += 1 + children_[rank].streams.size();
    }
  }

  void reap(int rank) {
    Child& child = children_[static_cast<size_t>(rank)];
    int status = 0;
    if (waitpid(child.pid, &status, WNOHANG) != child.pid) return;
    child.status = status;
    child.ended = seconds_since(begin_);
    child.pressed = asked_;
    kill(-child.pid, SIGKILL);  // whatever it started itself
    if (status == 0) return;
    failed_.push_back(rank);
    if (!end_) end_ = Clock::now() + std::chrono::duration_cast<Clock::duration>(options_.grace);
  }

  void forward_signal() {
    signalfd_siginfo info{};
    if (read(signals_.get(), &info, sizeof info) != sizeof info) return;
    // timeout(1) and some shells signal the process and then its group: that is one wish, not two.
    if (interrupted_ != 0 && seconds_since(interrupted_at_) < 0.3) return;
    interrupt(static_cast<int>(info.ssi_signo));
  }

  void interrupt(int signal) {
    const bool again = interrupted_ != 0;
    interrupted_at_ = Clock::now();
    interrupted_ = signal;
    to_all(again ? SIGKILL : interrupted_);
    if (!end_) end_ = Clock::now() + std::chrono::seconds(5);
  }

  /// The ranks have been told too, and end by themselves; those who do not are helped.
  void end_for_failure_elsewhere() {
    failed_elsewhere_ = true;
    if (!end_) end_ = Clock::now() + std::chrono::duration_cast<Clock::duration>(options_.grace);
  }

  void to_all(int signal) {
    for (Child& child : children_) {
      if (child.status) continue;
      kill(-child.pid, signal);
      kill(-child.pid, SIGCONT);  // a stopped process takes its signal only when it goes on
    }
  }

  void escalate() {
    to_all(std::exchange(asked_, true) ? SIGKILL : SIGTERM);
    end_ = Clock::now() + std::chrono::duration_cast<Clock::duration>(kBetweenSignals);
  }

  /// Who died first. Deaths that were seen within a moment of each other are told apart by kind: a kill is a cause, an error exit may be its consequence.
  int culprit() const {
    if (failed_.empty()) return -1;
    const auto of = [&](int rank) -> const Child& { return children_[static_cast<size_t>(rank)]; };
    const double first = of(failed_.front()).ended;
    for (int rank : failed_) {
      const int status = *of(rank).status;
      if (!of(rank).pressed && of(rank).ended < first + 0.1 && WIFSIGNALED(status) && WTERMSIG(status) != SIGABRT) return rank;
    }
    // An error that all ranks find is told by the lowest.
    int lowest = -1;
    for (int rank : failed_) {
      const int status = *of(rank).status;
      if (of(rank).pressed || (WIFEXITED(status) && WEXITSTATUS(status) == kPeerLostExit)) continue;
      if (lowest < 0 || (of(rank).ended < first + 0.1 && rank < lowest)) lowest = rank;
    }
    return lowest >= 0 ? lowest : failed_.front();
  }

  LaunchResult result() const {
    LaunchResult result;
    result.interrupted = interrupted_ != 0;
    if (result.interrupted) result.exit_code = 128 + interrupted_;
    result.first_failed = culprit();
    if (result.first_failed < 0 || result.interrupted) return result;
    const Child& child = children_[static_cast<size_t>(result.first_failed)];
    const int status = *child.status;
    std::string how;
    if (WIFSIGNALED(status)) {
      const int signal = WTERMSIG(status);
      result.exit_code = 128 + signal;
      how = fmt::format("killed by signal {} (SIG{}{})", signal, sigabbrev_np(signal) == nullptr ? "?" : sigabbrev_np(signal),
                        signal == SIGKILL ? "; the kernel does that too when memory runs out" : "");
    } else {
      result.exit_code = WEXITSTATUS(status);
      how = fmt::format("exit code {}", result.exit_code);
    }
    result.reason = fmt::format("{} (process {}) died first: {} after {:.1f} s", name_of(result.first_failed), child.pid, how, child.ended);
    if (options_.commands.empty()) result.first_failed += options_.first_rank;
    result.last_lines.assign(child.last.begin(), child.last.end());
    return result;
  }

  LaunchOptions options_;
  std::vector<Child> children_;
  std::vector<int> failed_;  // in the order in which they were seen
  sigset_t before_{}, of_children_{};
  struct sigaction broken_pipe_ {};
  Descriptor signals_;
  Clock::time_point begin_ = Clock::now();
  std::optional<Clock::time_point> end_;  // when to press harder
  bool asked_ = false;                    // SIGTERM was sent
  bool failed_elsewhere_ = false, hung_up_ = false;
  int interrupted_ = 0;
  Clock::time_point interrupted_at_;
};

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
  if (options.command.empty() && options.commands.empty()) fail<InvalidArgument>("nothing to launch: give a program after --");
  if (options.ranks < 1 || options.ranks > 256) fail<InvalidArgument>("the number of ranks must be 1 to 256, not {}", options.ranks);
  if (options.size == 0) options.size = options.ranks;
  if (options.job.empty()) options.job = random_name();
  if (options.master_port == 0) options.master_port = free_port();
  return Job(std::move(options)).run();
}

}  // namespace trireme::cluster
