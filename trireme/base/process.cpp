#include <trireme/base/process.h>

#include <fmt/format.h>
#include <pthread.h>
#include <sched.h>
#include <sys/syscall.h>

#include <fstream>
#include <sstream>

namespace trireme {

Descriptor open_process(pid_t pid) { return Descriptor(static_cast<int>(syscall(SYS_pidfd_open, pid, 0))); }

std::string process_state(pid_t pid) {
  std::ifstream file(fmt::format("/proc/{}/stat", pid));
  std::stringstream content;
  content << file.rdbuf();
  const std::string text = content.str();
  const size_t name_end = text.rfind(')');
  if (name_end == std::string::npos || name_end + 2 >= text.size()) return "ended";
  switch (text[name_end + 2]) {
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
