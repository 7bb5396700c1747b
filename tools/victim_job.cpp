#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <csignal>
#include <deque>
#include <fstream>
#include <sstream>

#include <trireme/base/error.h>
#include <trireme/base/process.h>
#include <trireme/cluster/status_door.h>

#include "victim_job.h"

namespace trireme::tools {
namespace {

namespace fs = std::filesystem;

constexpr Seconds kToDie{10};  // after SIGTERM, then SIGKILL comes

sigset_t ending_signals() {
  sigset_t set;
  sigemptyset(&set);
  for (int signal : {SIGINT, SIGTERM, SIGHUP}) sigaddset(&set, signal);
  return set;
}

/// Fields of /proc/PID/stat after the name, which may have spaces: state, parent, …; empty: there is no such process.
std::vector<std::string> stat_of(pid_t pid) {
  std::ifstream file(fmt::format("/proc/{}/stat", pid));
  std::string text;
  std::getline(file, text);
  const size_t end = text.rfind(')');
  if (end == std::string::npos) return {};
  std::istringstream rest(text.substr(end + 1));
  std::vector<std::string> fields;
  for (std::string field; rest >> field;) fields.push_back(field);
  return fields;
}

constexpr size_t kState = 0, kParent = 1, kStart = 19;  // of these fields

bool ended(const std::vector<std::string>& stat) {
  return stat.size() <= kStart || stat[kState] == "Z" || stat[kState] == "X";
}

/// In the child: nothing that allocates.
[[noreturn]] void execute(char** argv, int log, pid_t parent) {
  setpgid(0, 0);  // Ctrl-C is for whoever disturbs it, and comes from there
  prctl(PR_SET_PDEATHSIG, SIGTERM);
  if (getppid() != parent) _exit(1);
  sigset_t none;
  sigemptyset(&none);
  sigprocmask(SIG_SETMASK, &none, nullptr);
  const int null = open("/dev/null", O_RDONLY);
  dup2(null, 0);
  dup2(log, 1);
  dup2(log, 2);
  execv(argv[0], argv);
  _exit(127);
}

WorkerLook look_of(const cluster::MemberMetrics& member) {
  const metrics::Snapshot& s = member.snapshot;
  const metrics::Entry exchange = s.total("exchange_seconds");
  WorkerLook look{.rank = member.member.rank, .process = member.member.pid};
  look.updates = s.total("updates").value;
  look.steps = exchange.count();
  look.busy = exchange.sum + s.total("forward_seconds").sum + s.total("backward_seconds").sum;
  look.crew = s.total("crew").value;
  look.epoch = s.total("crew_epoch").value;
  const double since = s.total("crew_since").value;
  look.since = since > 0 ? since : 0;
  return look;
}

}  // namespace

double steady_seconds() { return Seconds(Clock::now().time_since_epoch()).count(); }

std::vector<WorkerLook> crew_of(const std::vector<WorkerLook>& workers) {
  double newest = -1;
  for (const WorkerLook& worker : workers)
    if (worker.crew > 0) newest = std::max(newest, worker.epoch);
  std::vector<WorkerLook> crew;
  for (const WorkerLook& worker : workers)
    if (worker.crew > 0 && worker.epoch == newest) crew.push_back(worker);
  std::sort(crew.begin(), crew.end(), [](const auto& a, const auto& b) { return a.rank < b.rank; });
  return crew;
}

VictimJob::VictimJob(std::vector<std::string> command, fs::path log) : log_(std::move(log)) {
  const sigset_t set = ending_signals();
  sigprocmask(SIG_BLOCK, &set, nullptr);
  signals_ = Descriptor(signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK));
  const Descriptor output(open(log_.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644));
  if (!signals_ || !output) fail<IoError>("cannot start a job: {}", errno_text());
  std::vector<char*> argv;
  for (std::string& word : command) argv.push_back(word.data());
  argv.push_back(nullptr);
  const pid_t parent = getpid();
  pid_ = fork();
  if (pid_ < 0) fail<IoError>("cannot start a job: {}", errno_text());
  if (pid_ == 0) execute(argv.data(), output.get(), parent);
  process_ = open_process(pid_);
}

VictimJob::~VictimJob() { end(Seconds(0)); }

void VictimJob::reap() {
  int status = 0;
  if (code_ || waitpid(pid_, &status, WNOHANG) != pid_) return;
  code_ = WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
}

bool VictimJob::pass(Seconds time) {
  const Deadline deadline(time);
  while (!code_ && signal_ == 0) {
    std::array<pollfd, 2> polls = {{{process_.get(), POLLIN, 0}, {signals_.get(), POLLIN, 0}}};
    const timespec left{static_cast<time_t>(deadline.left().count()),
                        static_cast<long>(std::fmod(deadline.left().count(), 1.0) * 1e9)};
    const int ready = ppoll(polls.data(), polls.size(), &left, nullptr);
    signalfd_siginfo info{};
    if (ready > 0 && read(signals_.get(), &info, sizeof info) == sizeof info)
      signal_ = static_cast<int>(info.ssi_signo);
    if (ready > 0) reap();
    if (ready == 0 || (ready < 0 && errno != EINTR)) break;
  }
  return !code_ && signal_ == 0;
}

void VictimJob::end(Seconds patience) {
  const std::vector<pid_t> workers = processes();
  for (const auto& [number, time] :
       {std::pair(SIGINT, patience), std::pair(SIGTERM, kToDie), std::pair(SIGKILL, kToDie)}) {
    if (code_ || (number == SIGINT && patience.count() <= 0)) continue;
    for (pid_t worker : workers) signal(worker, SIGCONT);  // one that is stopped cannot end
    kill(pid_, number);
    const int asked = std::exchange(signal_, 0);  // to stop: that is what we do, and it is not to cut the wait short
    pass(time);
    if (signal_ == 0) signal_ = asked;
  }
}

std::vector<pid_t> VictimJob::processes() const {
  std::vector<pid_t> all;
  std::error_code gone;
  for (const auto& task : fs::directory_iterator(fmt::format("/proc/{}/task", pid_), gone)) {
    std::ifstream file(task.path() / "children");
    for (pid_t child = 0; file >> child;)
      if (const auto stat = stat_of(child); !ended(stat)) {
        all.push_back(child);
        seen_[child] = stat[kStart];
      }
  }
  return all;
}

std::optional<WorkerLook> VictimJob::look_at(pid_t process, Seconds timeout) {
  const auto member = cluster::ask_process(process, timeout);
  if (!member || member->member.kind != cluster::Member::worker) return std::nullopt;
  return look_of(*member);
}

std::vector<WorkerLook> VictimJob::look(Seconds timeout, const std::set<pid_t>& but) {
  std::vector<WorkerLook> all;
  for (pid_t process : processes())
    if (but.count(process) == 0)
      if (const auto look = look_at(process, timeout)) all.push_back(*look);
  return all;
}

bool VictimJob::signal(pid_t process, int number) const {
  const Descriptor handle = open_process(process);  // from here on the number cannot become another process's
  const auto stat = stat_of(process);
  if (!handle || ended(stat) || stat[kParent] != std::to_string(pid_)) return false;
  return syscall(SYS_pidfd_send_signal, handle.get(), number, nullptr, 0) == 0;
}

std::vector<pid_t> VictimJob::left() const {
  std::vector<pid_t> all;
  for (const auto& [process, start] : seen_)
    if (const auto stat = stat_of(process); !ended(stat) && stat[kStart] == start) all.push_back(process);
  return all;
}

std::vector<std::string> VictimJob::last_lines(size_t most) const {
  std::deque<std::string> lines;
  std::ifstream file(log_);
  for (std::string line; std::getline(file, line);) {
    lines.push_back(line);
    if (lines.size() > most) lines.pop_front();
  }
  return {lines.begin(), lines.end()};
}

}  // namespace trireme::tools
