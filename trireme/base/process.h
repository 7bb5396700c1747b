#pragma once
// Facts about processes of this machine.
#include <sys/types.h>

#include <string>

#include <trireme/base/descriptor.h>

namespace trireme {

/// A descriptor that becomes readable when the process ends, also while it is a zombie. Empty when there is no such process.
Descriptor open_process(pid_t pid);

/// "running", "sleeping", "stopped (SIGSTOP?)", "ended": for error messages.
std::string process_state(pid_t pid);

/// Names the calling thread (15 characters at most), for ps, top and gdb.
void name_thread(const char* name);

/// Cores that this process may use.
int usable_cores();

/// Moves the calling thread to another core, if it may use another. Where it may run stays as it is: the kernel can bring it back later.
void leave_core();

}  // namespace trireme
