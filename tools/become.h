#pragma once
#include <string>
#include <vector>

#include "commands.h"

namespace trireme::tools {

/// Becomes another program, in place: of `command` the first word is its path. Throws IoError.
[[noreturn]] void become(std::vector<std::string> command);

/// Becomes the program with libtorch, which reads the same command line. Throws IoError.
[[noreturn]] void become_worker(const Invocation& invocation);

/// For the program that this process becomes: how many threads it computes with.
void set_threads(int threads);

/// Under `ulimit -v`: throws when `worker` cannot load libtorch at all, which is found out by doing it.
void check_address_limit(const std::string& worker);

}  // namespace trireme::tools
