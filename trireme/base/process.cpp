#include <fmt/format.h>
#include <pthread.h>
#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <charconv>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>

#include <trireme/base/process.h>

namespace trireme {

Descriptor open_process(pid_t pid) { return Descriptor(static_cast<int>(syscall(SYS_pidfd_open, pid, 0))); }

namespace {

/// /proc/PID/stat from the state on; "" when there is no such process.
std::string stat_of(pid_t pid) {
  std::ifstream file(fmt::format("/proc/{}/stat", pid));
  std::stringstream content;
  content << file.rdbuf();
  const std::string text = content.str();
  const size_t name_end = text.rfind(')');
  return name_end == std::string::npos || name_end + 2 >= text.size() ? "" : text.substr(name_end + 2);
}

struct Stat {
  char state = 'X';
  pid_t parent = 0, group = 0;
  double cpu_ticks = 0;
};

Stat read_stat(pid_t pid) {
  Stat stat;
  std::istringstream text(stat_of(pid));
  std::string passed;
  text >> stat.state >> stat.parent >> stat.group;
  for (int field = 6; field <= 13; field++) text >> passed;
  double user = 0, system = 0;
  if (text >> user >> system) stat.cpu_ticks = user + system;
  return stat;
}

}  // namespace

std::vector<pid_t> processes_of(pid_t group) {
  std::vector<pid_t> result;
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator("/proc", error)) {
    const std::string name = entry.path().filename();
    pid_t pid = 0;
    if (std::from_chars(name.data(), name.data() + name.size(), pid).ptr != name.data() + name.size()) continue;
    if (read_stat(pid).group == group) result.push_back(pid);
  }
  return result;
}

Activity activity_of(pid_t group) {
  Activity activity;
  for (const pid_t pid : processes_of(group)) {
    const Stat stat = read_stat(pid);
    activity.cpu_seconds += stat.cpu_ticks / static_cast<double>(sysconf(_SC_CLK_TCK));
    activity.at_disk = activity.at_disk || stat.state == 'D';
  }
  return activity;
}

std::string origin_here() {
  const pid_t parent = getppid();
  std::istringstream text(stat_of(parent));
  std::string started;
  for (int field = 3; field <= 22; field++) text >> started;  // the last one is the time of its start
  std::error_code error;
  const auto names =
      std::filesystem::read_symlink("/proc/self/ns/pid", error);  // containers count their processes on their own
  return fmt::format("{}/{}/{}", names.string(), parent, started);
}

bool catches(pid_t pid, int signal) {
  std::ifstream file(fmt::format("/proc/{}/status", pid));
  for (std::string line; std::getline(file, line);) {
    if (!line.starts_with("SigCgt:")) continue;
    return (std::strtoull(line.c_str() + 7, nullptr, 16) >> (signal - 1) & 1) != 0;
  }
  return false;
}

std::string process_state(pid_t pid) {
  const std::string text = stat_of(pid);
  if (text.empty()) return "ended";
  switch (text[0]) {
    case 'R':
      return "running";
    case 'T':
    case 't':
      return "stopped (SIGSTOP or a debugger)";
    case 'Z':
    case 'X':
      return "ended";
    case 'D':
      return "waiting for a disk";
    default:
      return "sleeping";
  }
}

void name_thread(const char* name) { pthread_setname_np(pthread_self(), name); }

int usable_cores() {
  cpu_set_t set;
  CPU_ZERO(&set);
  return sched_getaffinity(0, sizeof set, &set) == 0 ? CPU_COUNT(&set) : 1;
}

void leave_core() {
  cpu_set_t allowed;
  const int core = sched_getcpu();
  if (core < 0 || core >= CPU_SETSIZE || sched_getaffinity(0, sizeof allowed, &allowed) != 0) return;
  cpu_set_t others = allowed;
  CPU_CLR(core, &others);
  if (CPU_COUNT(&others) == 0 || sched_setaffinity(0, sizeof others, &others) != 0) return;
  sched_setaffinity(0, sizeof allowed, &allowed);
}

}  // namespace trireme
