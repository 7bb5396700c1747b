// `trireme train`: started by a person it launches one worker process per rank; started by a launcher it becomes a worker.
#include <fmt/format.h>
#include <unistd.h>

#include <memory>

#include <trireme/base/error.h>
#include <trireme/cluster/launcher.h>
#include "commands.h"
#include "train_flags.h"

namespace trireme::tools {
namespace {

int launch_workers(const TrainSettings& settings, const Invocation& invocation) {
  cluster::LaunchOptions options{.command = {invocation.worker}, .ranks = settings.workers, .threads = settings.threads, .only_first = true};
  options.command.insert(options.command.end(), invocation.args.begin(), invocation.args.end());
  options.command.push_back("--progress=" + settings.progress);
  const cluster::LaunchResult result = cluster::launch(options);
  const bool spoke = result.first_failed == 0 && result.exit_code < 128;  // rank 0 has said itself why it ended
  if (result.first_failed >= 0 && !result.interrupted && !spoke) {
    print_error(result.reason);
    if (result.first_failed > 0)
      for (const std::string& line : result.last_lines) fmt::print(stderr, "  [{}] {}\n", result.first_failed, line);
  }
  return result.exit_code;
}

/// Becomes the worker program, in place.
[[noreturn]] void become_worker(const Invocation& invocation) {
  std::vector<std::string> command = {invocation.worker};
  command.insert(command.end(), invocation.args.begin(), invocation.args.end());
  std::vector<char*> argv;
  for (std::string& word : command) argv.push_back(word.data());
  argv.push_back(nullptr);
  execv(argv[0], argv.data());
  fail<IoError>("cannot start {}: {}. It belongs beside this program", invocation.worker, errno_text());
}

}  // namespace

Run add_train(CLI::App& app, const Invocation& invocation) {
  auto settings = std::make_shared<TrainSettings>();
  add_train_flags(app, *settings);
  return [settings, invocation] {
    const cluster::Place place = cluster::place_here();
    if (place.launcher != "alone") become_worker(invocation);
    resolve(*settings, place);
    return launch_workers(*settings, invocation);
  };
}

}  // namespace trireme::tools
