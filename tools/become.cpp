// From the command to the program with libtorch.
#include <fmt/format.h>
#include <unistd.h>

#include <cstdlib>

#include <trireme/base/error.h>
#include <trireme/base/segment.h>

#include "become.h"

namespace trireme::tools {

void become(std::vector<std::string> command) {
  std::vector<char*> argv;
  for (std::string& word : command) argv.push_back(word.data());
  argv.push_back(nullptr);
  execv(argv[0], argv.data());
  fail<IoError>("cannot start {}: {}. It belongs beside this program", command[0], errno_text());
}

void become_worker(const Invocation& invocation) {
  std::vector<std::string> command = {invocation.worker};
  command.insert(command.end(), invocation.args.begin(), invocation.args.end());
  become(std::move(command));
}

void set_threads(int threads) {
  for (const char* name : {"OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"})
    setenv(name, std::to_string(threads).c_str(), 1);
}

void check_address_limit(const std::string& worker) {
  const std::optional<size_t> left = addresses_left();
  if (!left || std::system(fmt::format("'{}' describe >/dev/null 2>&1", worker).c_str()) == 0) return;
  fail<Error>(
      "'ulimit -v' leaves {} MiB of addresses to a process, which is too little to load libtorch. Raise it: "
      "workers with small models need 2 GiB",
      *left >> 20);
}

}  // namespace trireme::tools
