#pragma once
// Facts about processes of this machine.
#include <sys/types.h>

#include <string>
#include <vector>

#include <trireme/base/descriptor.h>

namespace trireme {

/// A descriptor that becomes readable when the process ends, also while it is a zombie. Empty when there is no such
/// process.
Descriptor open_process(pid_t pid);

/// "running", "sleeping", "stopped (SIGSTOP?)", "ended": for error messages.
std::string process_state(pid_t pid);

/// The processes of a group.
std::vector<pid_t> processes_of(pid_t group);

/// What the processes of a group are doing.
struct Activity {
  double cpu_seconds = 0;  // used so far by those that there are now
  bool at_disk = false;    // one of them waits for a disk, or a file system's server
};
Activity activity_of(pid_t group);

/// Who started this process: its parent, told apart from all others that this machine has had since it was switched on.
/// What one shell or launcher starts has one origin; a parent that has ended, the machine's first process instead of
/// it.
std::string origin_here();

/// Whether the process has a handler for the signal.
bool catches(pid_t pid, int signal);

/// Names the calling thread (15 characters at most), for ps, top and gdb.
void name_thread(const char* name);

/// Cores that this process may use.
int usable_cores();

/// Moves the calling thread to another core, if it may use another. Where it may run stays as it is: the kernel can
/// bring it back later.
void leave_core();

}  // namespace trireme
